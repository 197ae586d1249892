"""Runs the generations of a request: each gets a slot, starts on that worker, is tried again.

None waits for another. When one fails for good the others are aborted, and the request has failed.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol

import structlog

from edge import rate_limits
from edge.caller import Caller
from edge.errors import BROKEN_OFF, TOO_LONG, Refusal
from edge.exchange import Exchange
from edge.generate_request import Batch
from edge.metering import Meter, Tally
from edge.metrics import Metrics
from edge.retries import AttemptError, Retries
from edge.scheduler_link import SchedulerLink
from edge.sse import FINISH_REASONS
from edge.turns import Grant, Turn, Wish
from edge.usage_lines import Status
from edge.worker_link import Workers
from fastrun.service.errors import ServiceError, reason_name
from fastrun.v1.error_pb2 import ErrorDetail, ErrorReason
from fastrun.v1.generation_pb2 import Accepted, Delta, Finished

log = structlog.get_logger()

# What no other worker would do better; all else only says that this one could not go on.
_LASTING = frozenset({ErrorReason.ERROR_REASON_INVALID_REQUEST, ErrorReason.ERROR_REASON_INTERNAL})


class Output(Protocol):
    """Where what is generated goes, by the index of its generation."""

    def begin(self, index: int) -> None:
        """Show the client that this generation is being worked on. Idempotent."""

    def on_delta(self, index: int, delta: Delta) -> None:
        """More was generated."""

    def on_finished(self, index: int, finished: Finished) -> None:
        """It ended well."""

    def restart(self, index: int) -> bool:
        """Forget what was generated; returns False where the client may have seen it."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long a generation may take, in seconds; edge.config says what each is."""

    queue_s: float
    first_delta_s: float
    silence_s: float
    whole_s: float
    early_headers_s: float


@dataclass(frozen=True, slots=True)
class Job:
    """The generations of one request, to be run."""

    caller: Caller
    batch: Batch
    exchange: Exchange
    """Told what its log line and its headers will say."""
    meter: Meter
    """Told what its usage record will say."""


class Generations:
    """Runs generations on the fleet."""

    def __init__(
        self, scheduler: SchedulerLink, workers: Workers, times: Times, metrics: Metrics
    ) -> None:
        self._scheduler = scheduler
        self._workers = workers
        self._times = times
        self._metrics = metrics

    async def run(self, job: Job, output: Output) -> list[Finished]:
        """Run all to their ends. Cancelling this call gives up their place or aborts them at once.

        Returns:
            How each ended, by index.

        Raises:
            ServiceError: no worker ran one to its end.
            Refusal: it took too long, or one broke off when its client had seen a part.
        """
        retries = Retries(queue_timeout_s=self._times.queue_s)
        turn = self._ask(job, tuple(range(job.batch.size)), retries)
        status, finish = Status.FAILED, ""
        try:
            async with asyncio.timeout(self._times.whole_s):
                if job.batch.size == 1:
                    ended = [await self._run_one(job, 0, turn, output)]
                else:
                    ended = await self._run_all(job, turn, output)
            status, finish = Status.COMPLETED, FINISH_REASONS[ended[0].reason]
        except TimeoutError:
            raise Refusal(502, TOO_LONG, reason="too_long") from None
        except asyncio.CancelledError:
            status = Status.CANCELLED
            raise
        finally:
            self._scheduler.give_up(turn)
            job.meter.end(job.exchange.ending(status, finish))
        return ended

    async def _run_all(self, job: Job, turn: Turn, output: Output) -> list[Finished]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._run_one(job, index, turn, output))
                    for index in range(job.batch.size)
                ]
        except BaseExceptionGroup as failed:  # the first is why all others were ended
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _run_one(self, job: Job, index: int, turn: Turn, output: Output) -> Finished:
        retries = Retries(queue_timeout_s=self._times.queue_s)
        grant = await self._slot(job, index, turn, retries)
        while True:
            started_at = time.monotonic()
            try:
                finished = await self._attempt(job, index, grant, output)
            except AttemptError as failure:
                held_s = time.monotonic() - started_at
                pause_s = retries.after_attempt(failure, grant.worker_id, held_s)
                reason = reason_name(failure.error.detail.reason)
                self._metrics.retried(reason)
                log.info("generation_retried", worker_id=grant.worker_id, reason=reason)
            else:
                output.on_finished(index, finished)
                return finished
            await asyncio.sleep(pause_s)
            again = self._ask(job, (index,), retries)
            try:
                grant = await self._slot(job, index, again, retries)
            finally:
                self._scheduler.give_up(again)

    def _ask(self, job: Job, generations: tuple[int, ...], retries: Retries) -> Turn:
        return self._scheduler.ask(
            Wish(
                request_id=job.batch.common.request_id,
                caller=job.caller,
                model=job.batch.common.model,
                queue_timeout_s=retries.queue_timeout_s,
                waited_s=retries.waited_s,
                excluded_worker_ids=retries.excluded,
                front=retries.front,
                generations=generations,
                choices=job.batch.choices,
                token_estimate=job.batch.token_estimate,
            )
        )

    async def _slot(self, job: Job, index: int, turn: Turn, retries: Retries) -> Grant:
        try:
            grant = await turn.slot(index)
        except ServiceError as error:
            raise retries.after_rejection(error) from None
        finally:
            retries.waited_s = turn.waited_s(time.monotonic())
            job.exchange.facts["queued_ms"] = round(retries.waited_s * 1000, 1)
            if turn.rate_limit is not None:
                job.exchange.rate_limit = rate_limits.headers(turn.rate_limit)
        self._metrics.queued(retries.waited_s)
        return grant

    async def _attempt(self, job: Job, index: int, grant: Grant, output: Output) -> Finished:
        job.exchange.facts["worker_id"] = grant.worker_id
        request = job.batch.request(index, grant.lease)
        try:
            tally = job.meter.attempt(index, grant.worker_id)
        except Refusal:
            self._scheduler.release(grant)
            raise
        attempt = _Attempt(index, output, tally, self._times.early_headers_s)
        call = self._workers.start(grant, request, attempt)
        try:
            return await self._watch(attempt)
        except AttemptError as failure:
            if attempt.has_delta and not output.restart(index):
                raise _broken_off(failure.error) from None
            raise
        finally:
            attempt.close()
            call.abort()  # nothing is sent when it has ended by itself

    async def _watch(self, attempt: "_Attempt") -> Finished:
        """Wait for the end; too long a silence is one."""
        while True:
            limit_s = self._times.silence_s if attempt.has_delta else self._times.first_delta_s
            left_s = attempt.moved_at + limit_s - time.monotonic()
            if left_s <= 0:
                raise AttemptError(
                    ServiceError(ErrorReason.ERROR_REASON_ENGINE_FAILED, "the worker was silent")
                )
            # The first delta changes the limit, so look again by then.
            wake_s = min(left_s, self._times.silence_s)
            ended, _ = await asyncio.wait({attempt.ended}, timeout=wake_s)
            if ended:
                return attempt.ended.result()


def _broken_off(error: ServiceError) -> Exception:
    """What the client is told of a failure in mid-stream: its own fault, or a bug, stays one."""
    if error.detail.reason in _LASTING:
        return error
    return Refusal(502, BROKEN_OFF, reason="broken_off")


class _Attempt:
    """One try on one worker; the sink of its events."""

    def __init__(self, index: int, output: Output, tally: Tally, early_headers_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._index = index
        self._output = output
        self._tally = tally
        self._early = loop.call_later(early_headers_s, output.begin, index)
        self.ended: asyncio.Future[Finished] = loop.create_future()
        self.has_delta = False
        self.moved_at = time.monotonic()

    def on_accepted(self, accepted: Accepted) -> None:
        """Nothing is owed to the client yet: what was accepted may still fail."""
        self._tally.accepted(accepted.prompt_tokens)

    def on_delta(self, delta: Delta) -> None:
        """Pass on, unless nobody wants it any more."""
        self._tally.received(len(delta.token_ids))
        if not self.ended.done():
            self.has_delta = True
            self.moved_at = time.monotonic()
            self._output.on_delta(self._index, delta)

    def on_finished(self, finished: Finished) -> None:
        """End well, or be told that the worker gave up."""
        self._tally.finished(finished)
        if finished.reason not in FINISH_REASONS:
            error = ServiceError(ErrorReason.ERROR_REASON_ENGINE_FAILED, "the worker gave up")
            self._fail(AttemptError(error))
        elif not self.ended.done():
            self.ended.set_result(finished)

    def on_failed(self, error: ErrorDetail) -> None:
        """End with the worker's reason."""
        self._tally.failed()
        self._fail(AttemptError(ServiceError.of(error)))

    def on_lost(self, *, was_sent: bool) -> None:
        """End with the worker, or the way to it, gone."""
        self._tally.lost(was_sent=was_sent)
        error = ServiceError(ErrorReason.ERROR_REASON_ENGINE_FAILED, "the worker was lost")
        self._fail(AttemptError(error, died=was_sent))

    def close(self) -> None:
        """Take nothing more."""
        self._early.cancel()
        self.ended.cancel()

    def _fail(self, error: AttemptError) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # seen, also when nobody waits for it any more
