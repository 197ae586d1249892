"""Brings what stands in the spool to the auth service, and adopts what dead edges left there."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from contextvars import Context

import msgspec
import structlog

from edge.metrics import Metrics
from edge.usage_files import Orphan
from edge.usage_lines import Closed, Open
from edge.usage_link import UsageLink
from edge.usage_records import message, settled
from edge.usage_spool import Spool
from fastrun.service.errors import ServiceError
from fastrun.service.streams import backoff_s
from fastrun.v1.error_pb2 import ErrorReason

log = structlog.get_logger()

BATCH = 250
"""Records in one call: few enough that reading and packing them holds up no stream."""
ASKED_AT_ONCE = 1000
PATIENCE_S = 10.0
"""What nobody knows this long after the first question nobody will: a lease whose edge has died is
voided after 5 s, and a scheduler that starts anew hears at once of the slots that were freed."""
SCHEDULER_MEMORY_S = 3600.0
"""No scheduler knows anything for longer."""
LAST_DELIVERY_S = 3.0
TOLD_AT = 8
"""Failure that is told of, after some 5 s: an auth service that was restarted is back by then."""


class UsageDelivery:
    """Empties the spool, again and again."""

    def __init__(
        self,
        spool: Spool,
        link: UsageLink,
        metrics: Metrics,
        *,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; start() begins.

        Args:
            spool: to be emptied.
            link: to whom.
            metrics: told how it goes.
            interval_s: between two rounds.
            clock: monotonic seconds.
        """
        self._spool = spool
        self._link = link
        self._metrics = metrics
        self._interval_s = interval_s
        self._clock = clock
        self._asked_since: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to deliver in the background."""
        self._spool.repair()
        self._tasks = [
            asyncio.create_task(work(), name=name, context=Context())
            for name, work in (("deliver-usage", self._deliver), ("keep-usage", self._keep))
        ]

    async def stop(self) -> None:
        """Deliver what can be delivered at once, and leave the rest to the next edge."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._tasks:
            try:
                async with asyncio.timeout(LAST_DELIVERY_S):
                    await self._round()
            except (ServiceError, OSError, TimeoutError) as error:
                log.warning("usage_left_in_spool", reason=str(error))
        self._tasks = []
        self._spool.close()

    async def _keep(self) -> None:
        """See that it can be written, and that a power failure takes little."""
        while True:
            try:
                self._spool.repair()
                await self._spool.sync()
            except Exception:
                # Without later rounds, what was amiss once would stay so.
                log.exception("usage_delivery_broken")
            self._metrics.spooled(self._spool.size)
            await asyncio.sleep(self._interval_s)

    async def _deliver(self) -> None:
        failures = 0
        while True:
            try:
                await self._round()
                failures = 0
            except ServiceError as error:
                failures += 1
                if failures == TOLD_AT:
                    log.warning("usage_delivery_failed", reason=error.detail.message)
            except Exception:
                failures += 1
                if failures == 1:
                    log.exception("usage_delivery_broken")
            await asyncio.sleep(backoff_s(failures) if failures else self._interval_s)

    async def _round(self) -> None:
        """Deliver all that there is.

        Raises:
            ServiceError: the auth service takes nothing.
            OSError: a file cannot be read or deleted.
        """
        # First, and so also while nothing can be delivered: schedulers forget.
        await self._ask()
        corrupt = self._spool.corrupt
        while records := self._spool.next_batch(BATCH):
            await self._record(records)
            await self._spool.confirm()
        await self._spool.confirm()
        self._metrics.corrupt(self._spool.corrupt - corrupt)
        while orphan := self._spool.adopt():
            await self._adopt(orphan)

    async def _adopt(self, orphan: Orphan) -> None:
        while records := orphan.next_batch(BATCH):
            await self._record(records)
            orphan.confirm()
        await self._spool.settle(orphan)
        self._metrics.corrupt(orphan.corrupt)
        log.info("usage_adopted", corrupt=orphan.corrupt, open=len(orphan.left_open()))

    async def _record(self, records: list[Closed]) -> None:
        try:
            await self._link.record([message(record) for record in records])
        except ServiceError as error:
            if error.detail.reason != ErrorReason.ERROR_REASON_INVALID_REQUEST:
                raise
            await self._record_parts(records, error)
        else:
            self._metrics.delivered(len(records))

    async def _record_parts(self, records: list[Closed], error: ServiceError) -> None:
        """Find the one that is refused: it must not hold up all others for ever."""
        if len(records) > 1:
            middle = len(records) // 2
            await self._record(records[:middle])
            await self._record(records[middle:])
            return
        self._metrics.refused()
        log.error(
            "usage_record_refused",
            reason=error.detail.message,
            record=msgspec.to_builtins(records[0]),
        )

    async def _ask(self) -> None:
        """Settle requests that are over and of which only the schedulers know what they used."""
        waiting = self._spool.to_ask()
        if not waiting:
            return
        now = self._clock()
        since = self._asked_since
        self._asked_since = {each.request_id: since.get(each.request_id, now) for each in waiting}
        for first in range(0, len(waiting), ASKED_AT_ONCE):
            await self._ask_about(waiting[first : first + ASKED_AT_ONCE])

    async def _ask_about(self, requests: list[Open]) -> None:
        found = await self._link.find([each.request_id for each in requests])
        known = defaultdict(list)
        for generation in found.generations:
            known[generation.request_id].append(generation)
        now = self._clock()
        for request in requests:
            asked_s = now - self._asked_since[request.request_id]
            is_late = asked_s >= SCHEDULER_MEMORY_S
            if request.request_id in found.running and not is_late:
                continue
            line = settled(
                request,
                known[request.request_id],
                is_final=is_late or (found.is_complete and asked_s >= PATIENCE_S),
            )
            if line is not None:
                self._spool.end(line)
                if isinstance(line, Closed):
                    self._metrics.metered(line.ending.status)
