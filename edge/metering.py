"""What becomes of a request, told to the spool: opened before its first Start, ended once at last.

Each try of a generation on a worker has a tally. A request is admitted when a worker accepted one;
its record is made when its handler and all its tallies are done, for the end of a try that was
aborted still tells what it used.
"""

import asyncio
from collections.abc import Callable, Mapping

import msgspec
import structlog

from edge.errors import USAGE_UNRECORDED, Refusal
from edge.usage_lines import Counts, Ending, Open, Started, Status, Void
from edge.usage_records import add_up, closed, counts_of
from edge.usage_spool import Spool, SpoolError
from fastrun.v1.generation_pb2 import Finished, FinishReason, Usage

log = structlog.get_logger()


class Tally:
    """What one try of one generation on one worker used."""

    __slots__ = (
        "_on_end",
        "_prompt_tokens",
        "_tokens",
        "_usage",
        "_was_lost",
        "has_ended",
        "index",
        "ran",
        "worker_id",
    )

    def __init__(self, index: int, worker_id: str, on_end: Callable[[], None]) -> None:
        self.index = index
        self.worker_id = worker_id
        self.ran = False
        """The worker accepted it."""
        self.has_ended = False
        """Nothing more will be told of it."""
        self._prompt_tokens: int | None = None
        self._tokens = 0
        self._usage: Usage | None = None
        self._was_lost = False
        self._on_end = on_end

    @property
    def is_partial(self) -> bool:
        """Whether it was lost, and what it used is not known exactly."""
        return self._was_lost

    @property
    def may_have_run(self) -> bool:
        """Whether it ran, or nobody has said that it did not."""
        return self.ran or self._was_lost or not self.has_ended

    @property
    def counts(self) -> Counts | None:
        """As the worker told them, else those that came here; None: it did not run."""
        if not self.ran:
            return None
        if self._usage is not None:
            return counts_of(self._usage)
        return Counts(prompt=self._prompt_tokens, completion=self._tokens)

    def accepted(self, prompt_tokens: int) -> None:
        """The worker runs it."""
        self.ran = True
        self._prompt_tokens = prompt_tokens

    def received(self, tokens: int) -> None:
        """So many more tokens have come."""
        self._tokens += tokens

    def finished(self, finished: Finished) -> None:
        """The worker says that it ended, and what it used."""
        # One that is aborted before it is accepted ends like this as well.
        self.ran = self.ran or finished.reason != FinishReason.FINISH_REASON_ABORTED
        self._usage = finished.usage
        self._end()

    def failed(self) -> None:
        """The worker refused it, or failed."""
        self._end()

    def lost(self, *, was_sent: bool) -> None:
        """Nothing more will come from the worker, which may have run it if it was sent."""
        if not self.has_ended:
            self._was_lost = was_sent
            self._end()

    def _end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._on_end()


class Meter:
    """The usage of one request."""

    def __init__(
        self,
        request: Open,
        spool: Spool,
        *,
        on_begin: Callable[[], None],
        on_end: Callable[[Status | None], None],
    ) -> None:
        """Prepare; nothing is written before the first attempt().

        Args:
            request: without generations.
            spool: told what becomes of it.
            on_begin: called when it was written.
            on_end: called when its end was, with the status of its record; None: it left none, or
                the schedulers are to be asked.
        """
        self._request = request
        self._spool = spool
        self._on_begin = on_begin
        self._on_end = on_end
        self._tallies: list[Tally] = []
        self._ending: Ending | None = None

    @property
    def has_started(self) -> bool:
        """Whether a worker was asked to begin."""
        return bool(self._tallies)

    @property
    def counts(self) -> Counts | None:
        """What it has used as far as that is known now; None: no worker runs it."""
        last = {tally.index: tally for tally in self._tallies if tally.ran}
        return self._total(last) if last else None

    def attempt(self, index: int, worker_id: str) -> Tally:
        """Begin to count one try; its Start must not be sent before.

        Raises:
            Refusal: 503; the spool cannot promise a record.
        """
        try:
            self._write_start(index)
        except SpoolError:
            raise unrecorded() from None
        tally = Tally(index, worker_id, self._tally_ended)
        self._tallies.append(tally)
        return tally

    def end(self, ending: Ending) -> None:
        """The handler is done with the request; tries may yet tell their ends."""
        self._ending = ending
        if self._tallies:
            self._tally_ended()

    def _write_start(self, index: int) -> None:
        if not self._tallies:
            self._spool.begin(msgspec.structs.replace(self._request, generations=(index,)))
            self._on_begin()
            return
        former = [tally for tally in self._tallies if tally.index == index]
        unsure = any(tally.may_have_run for tally in former)
        if unsure or not former:
            line = Started(request_id=self._request.request_id, generation=index, unsure=unsure)
            self._spool.started(line)

    def _tally_ended(self) -> None:
        if self._ending is None or not all(tally.has_ended for tally in self._tallies):
            return
        status = None
        for settle in (self._close, self._ask, self._ask_anyhow):
            try:
                status = settle(self._ending)
                break
            except Exception:
                # A fault of ours: what it used is known to the schedulers as well.
                log.exception("usage_not_added_up", request_id=self._request.request_id)
        self._on_end(status)

    def _close(self, ending: Ending) -> Status | None:
        request_id = self._request.request_id
        request = self._spool.opened(request_id)
        last = {tally.index: tally for tally in self._tallies if tally.ran}
        in_doubt = [tally for tally in self._tallies if tally.may_have_run and not tally.ran]
        if not last and not in_doubt:
            self._spool.end(Void(request_id=request_id))
            return None
        if not last:
            self._ask(ending)
            return None
        partial = any(tally.is_partial for tally in (*last.values(), *in_doubt))
        if partial and ending.status is not Status.COMPLETED:
            ending = msgspec.structs.replace(ending, status=Status.PARTIAL)
        worker_id = [tally.worker_id for tally in self._tallies if tally.ran][-1]
        total = self._total(last)
        self._spool.end(closed(request, ending, worker_id=worker_id, counts=total))
        return ending.status

    def _ask(self, ending: Ending) -> None:
        """Leave it to the schedulers what it used."""
        request = self._spool.opened(self._request.request_id)
        self._spool.ask(msgspec.structs.replace(request, ending=ending))

    def _ask_anyhow(self, _ending: Ending) -> None:
        """The same, counting on nothing but what has been written of it."""
        generations = tuple(sorted({tally.index for tally in self._tallies}))
        self._spool.ask(
            msgspec.structs.replace(
                self._request,
                generations=generations,
                unsure=True,
                ending=Ending(status=Status.PARTIAL),
            )
        )

    def _total(self, last: Mapping[int, Tally]) -> Counts:
        """Add up the last tallies of its generations, by their indices."""
        counts = [last[index].counts if index in last else None for index in range(max(last) + 1)]
        return add_up(counts, self._request.choices)


class Metering:
    """Makes the meters of one edge."""

    def __init__(self, spool: Spool, *, on_end: Callable[[Status | None], None]) -> None:
        """Begin.

        Args:
            spool: where all is written.
            on_end: called for each request whose end was; see Meter.
        """
        self._spool = spool
        self._on_end = on_end
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def meter(self, request: Open) -> Meter:
        """Make the meter of a request that is about to ask for slots.

        Raises:
            Refusal: 503; the spool is full or cannot be written.
        """
        if self._spool.problem is not None:
            raise unrecorded()
        return Meter(request, self._spool, on_begin=self._began, on_end=self._ended)

    async def idle(self) -> None:
        """Return when what every request used is written, or asked for."""
        await self._idle.wait()

    def _began(self) -> None:
        self._running += 1
        self._idle.clear()

    def _ended(self, status: Status | None) -> None:
        self._running -= 1
        if self._running == 0:
            self._idle.set()
        self._on_end(status)


def unrecorded() -> Refusal:
    """No worker may serve what cannot be recorded."""
    return Refusal(503, USAGE_UNRECORDED, reason="usage_unrecorded")
