"""One try of a generation on one worker: takes its events, and knows how it ended."""

import asyncio
import time
from typing import Protocol

from edge.metering import Tally
from edge.progress import Progress
from edge.retries import AttemptError
from edge.sse import FINISH_REASONS
from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorDetail, ErrorReason
from fastrun.v1.generation_pb2 import Accepted, Delta, Finished

# What speaks against a worker that says it of a request.
_FAULTS = frozenset(
    {
        ErrorReason.ERROR_REASON_ENGINE_FAILED,
        ErrorReason.ERROR_REASON_ENGINE_DIED,
        ErrorReason.ERROR_REASON_INTERNAL,
    }
)


class Output(Protocol):
    """Where what is generated goes, by the index of its generation."""

    @property
    def is_read_along(self) -> bool:
        """Whether somebody waits for each delta, and not for the end alone."""

    def begin(self, index: int) -> None:
        """Show the client that this generation is being worked on. Idempotent."""

    def on_delta(self, index: int, delta: Delta) -> None:
        """More was generated."""

    def on_finished(self, index: int, finished: Finished) -> None:
        """It ended well."""

    def restart(self, index: int) -> bool:
        """Forget what was generated; returns False where the client may have seen it."""


class Attempt:
    """The sink of one try's events."""

    def __init__(
        self,
        index: int,
        output: Output,
        tally: Tally,
        progress: Progress,
        *,
        early_headers_s: float,
        first_delta_s: float,
        silence_s: float,
    ) -> None:
        """Begin; on_accepted() and what follows it may come from now on.

        Args:
            index: of the generation.
            output: where it goes.
            tally: told what it uses.
            progress: of the generation; if that can be resumed, this try does.
            early_headers_s: after so long the client is shown that it is being worked on.
            first_delta_s: how long the first delta may be waited for.
            silence_s: how long any other may be.
        """
        self._loop = loop = asyncio.get_running_loop()
        self._index = index
        self._output = output
        self._tally = tally
        self._progress = progress
        self._resumed = len(progress.token_ids)
        self._first_delta_s = first_delta_s
        self._silence_s = silence_s
        self._ran = False
        self._has_delta = False
        self._moved_at = time.monotonic()
        self._early = loop.call_later(early_headers_s, output.begin, index)
        # The first delta changes the limit, so look again by then.
        self._look = loop.call_later(min(first_delta_s, silence_s), self._look_for_silence)
        self.ended: asyncio.Future[Finished] = loop.create_future()

    def on_accepted(self, accepted: Accepted) -> None:
        """Nothing is owed to the client yet: what was accepted may still fail."""
        self._ran = True
        if not self.ended.done():  # else another try may be under way
            self._progress.accepted(accepted)
        self._tally.accepted(self._progress.prompt_tokens or accepted.prompt_tokens)
        self._tally.received(self._resumed)

    def on_delta(self, delta: Delta) -> None:
        """Pass on, unless nobody wants it any more."""
        self._tally.received(len(delta.token_ids))
        if not self.ended.done():
            self._has_delta = True
            self._moved_at = time.monotonic()
            self._progress.received(delta)
            self._output.on_delta(self._index, delta)

    def on_finished(self, finished: Finished) -> None:
        """End well, or be told that the worker gave up."""
        if self._resumed and self._ran:
            self._progress.settle(finished.usage)
        self._tally.finished(finished)
        if finished.reason not in FINISH_REASONS:
            self._fail(_failed("the worker gave up"))
        elif not self.ended.done():
            self.ended.set_result(finished)

    def on_failed(self, error: ErrorDetail) -> None:
        """End with the worker's reason."""
        self._tally.failed()
        reason, message = error.reason, error.message
        if reason == ErrorReason.ERROR_REASON_INVALID_REQUEST and self._resumed and not self._ran:
            # It was right where it began: this worker cannot go on with it.
            self._progress.resumable = False
            self._fail(ServiceError(ErrorReason.ERROR_REASON_ENGINE_FAILED, message))
            return
        died = reason == ErrorReason.ERROR_REASON_ENGINE_DIED
        self._fail(ServiceError.of(error), died=died, is_fault=reason in _FAULTS)

    def on_lost(self, *, was_sent: bool) -> None:
        """End with the worker, or the way to it, gone."""
        self._tally.lost(was_sent=was_sent)
        # Of one that was sent the lost lease tells the scheduler.
        self._fail(_failed("the worker was lost"), died=was_sent, is_fault=not was_sent)

    def on_fault(self, fault: Exception) -> None:
        """End with a fault of ours: no other worker would do better."""
        self._end(fault)

    def on_silence(self) -> None:
        """End: the worker has said nothing for as long as it may."""
        self._fail(_failed("the worker was silent"), is_fault=not self._has_delta)

    def close(self) -> None:
        """Take nothing more."""
        self._early.cancel()
        self._look.cancel()
        self.ended.cancel()

    def _look_for_silence(self) -> None:
        limit_s = self._silence_s if self._has_delta else self._first_delta_s
        left_s = self._moved_at + limit_s - time.monotonic()
        if left_s <= 0:
            self.on_silence()
        else:
            left_s = min(left_s, self._silence_s)
            self._look = self._loop.call_later(left_s, self._look_for_silence)

    def _fail(self, error: ServiceError, *, died: bool = False, is_fault: bool = False) -> None:
        self._end(AttemptError(error, ran=self._ran, died=died, is_fault=is_fault))

    def _end(self, failure: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(failure)
            self.ended.exception()  # seen, also when nobody waits for it any more


def _failed(message: str) -> ServiceError:
    return ServiceError(ErrorReason.ERROR_REASON_ENGINE_FAILED, message)
