"""The worker's sessions with its schedulers: hello, heartbeats, and every slot that is freed.

No SlotFreed is lost: one that a broken session swallowed is sent again after the next Hello, and a
lease that this Hello does not list is voided by the scheduler, which is answered by SlotFreed.

Once a scheduler says a higher term than any before, all are told Hello again: what it lists then is
all that runs for the one that leads, and another one that believed to lead learns that it does not.
"""

from __future__ import annotations  # grpc's classes are generic in their stubs only

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import structlog

from fastrun.service import rpc
from fastrun.service.identity import Role
from fastrun.service.streams import (
    CLOSED,
    SCHEDULER_RETRY_S,
    DuplexStream,
    Outbox,
    backoff_s,
)
from fastrun.service.tls import Tls
from fastrun.v1.scheduler_pb2 import (
    Heartbeat,
    SlotFreed,
    WorkerCommand,
    WorkerHello,
    WorkerReport,
    WorkerReports,
)
from fastrun.v1.scheduler_pb2_grpc import SchedulerServiceStub
from fastrun.v1.worker_pb2 import Ping
from gpu_worker.slots import Slots

if TYPE_CHECKING:
    from fastrun.v1.scheduler_pb2_grpc import SchedulerServiceAsyncStub

log = structlog.get_logger()

HEARTBEAT_INTERVAL_S = 1.0
# More than can be freed while a dead session is not noticed yet. Older ones are asked for by Void.
RESENT_AFTER_HELLO = 4096


class Registration:
    """Keeps one session with every scheduler and tells all of them the same."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        slots: Slots,
        heartbeat: Callable[[], Heartbeat],
        on_drain: Callable[[float | None], None],
        tls: Tls | None = None,
    ) -> None:
        """Wire the sessions.

        Args:
            addresses: host:port of each scheduler.
            slots: whose leases are told of; obeys the schedulers.
            heartbeat: makes a heartbeat; called each second.
            on_drain: told to drain within so many seconds; None: as the settings say.
            tls: for the sessions; each begins with the certificate that is current then.
        """
        self._make_heartbeat = heartbeat
        self._slots = slots
        self._identity = WorkerHello()
        self._recent: deque[SlotFreed] = deque(maxlen=RESENT_AFTER_HELLO)
        self._sessions = [
            SchedulerSession(
                address,
                slots=slots,
                heartbeat=self._heartbeat,
                hello=self._hello,
                on_new_term=self._on_new_term,
                on_drain=on_drain,
                recent=self._recent,
                tls=tls,
            )
            for address in addresses
        ]

    @property
    def welcomed(self) -> bool:
        """At least one scheduler that leads has said Welcome and is still there."""
        return any(session.term for session in self._sessions)

    def freed(self, freed: SlotFreed) -> None:
        """Tell every scheduler that a lease can never run again."""
        self._recent.append(freed)
        self._tell(WorkerReport(slot_freed=freed))

    def beat(self) -> None:
        """Send a heartbeat now, since the state has changed."""
        if (heartbeat := self._heartbeat()) is not None:
            self._tell(WorkerReport(heartbeat=heartbeat))

    async def run(self, identity: WorkerHello) -> None:
        """Keep the sessions until cancelled.

        Args:
            identity: Hello without leases and term.
        """
        self._identity = identity
        async with asyncio.TaskGroup() as tasks:
            for session in self._sessions:
                tasks.create_task(session.run())
            while True:
                self.beat()
                await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    def _heartbeat(self) -> Heartbeat | None:
        """Make a heartbeat; None where a fault of ours keeps it from being made.

        What runs goes on, and its slots are told of as ever. Without heartbeats a worker is chosen
        last, and no part of one may be left out: a lease that it does not list is voided.
        """
        try:
            return self._make_heartbeat()
        except Exception:
            log.exception("heartbeat_failed")
            return None

    def _hello(self) -> WorkerHello:
        hello = WorkerHello(
            running_leases=self._slots.running_leases,
            voided_lease_ids=self._slots.voided_ids,
            term=self._slots.term,
        )
        hello.MergeFrom(self._identity)
        return hello

    def _on_new_term(self) -> None:
        self._tell(WorkerReport(hello=self._hello()))

    def _tell(self, report: WorkerReport) -> None:
        for session in self._sessions:
            session.report(report)


class SchedulerSession:
    """The session with one scheduler; comes back for as long as the worker lives."""

    def __init__(
        self,
        address: str,
        *,
        slots: Slots,
        heartbeat: Callable[[], Heartbeat | None],
        hello: Callable[[], WorkerHello],
        on_new_term: Callable[[], None],
        on_drain: Callable[[float | None], None],
        recent: Iterable[SlotFreed],
        tls: Tls | None,
    ) -> None:
        self.term: int | None = None
        """As last told; 0: it stands by; None: it has said no Welcome."""
        self._address = address
        self._slots = slots
        self._heartbeat = heartbeat
        self._hello = hello
        self._on_new_term = on_new_term
        self._on_drain = on_drain
        self._recent = recent
        self._tls = tls
        self._outbox: Outbox[WorkerReport] = Outbox(WorkerReports)
        self._stream: DuplexStream | None = None

    def report(self, report: WorkerReport) -> None:
        """Send a report in the running session; without one the next Hello tells it all."""
        if self._stream is not None:
            self._outbox.put(report)
            self._stream.wake()

    async def run(self) -> None:
        """Hold a session, and another one when it breaks, until cancelled."""
        attempt = 0
        while True:
            try:
                welcomed, reason = await self._hold()
            except Exception:
                log.exception("scheduler_session_failed", address=self._address)
                welcomed, reason = False, "a Welcome could not be taken"
            attempt = 1 if welcomed else attempt + 1
            if reason == CLOSED:
                log.info("scheduler_left", address=self._address)
            elif attempt == 1:  # what comes after is the same once more
                log.warning(
                    "scheduler_lost" if welcomed else "scheduler_not_reached",
                    address=self._address,
                    reason=reason,
                )
            await asyncio.sleep(backoff_s(attempt, cap_s=SCHEDULER_RETRY_S))

    async def _hold(self) -> tuple[bool, str]:
        """Return whether the scheduler said Welcome, and why the session ended."""
        channel = rpc.channel(self._address, Role.SCHEDULER, self._tls)
        stub: SchedulerServiceAsyncStub = SchedulerServiceStub(channel)
        call = stub.WorkerSession()
        self._outbox = Outbox(WorkerReports)
        self._stream = DuplexStream(
            call, self._outbox, on_item=self._take, ping=lambda: self._put(ping=Ping())
        )
        self._put(hello=self._hello())
        for freed in self._recent:
            self._put(slot_freed=freed)
        if (heartbeat := self._heartbeat()) is not None:
            self._put(heartbeat=heartbeat)
        self._stream.wake()
        try:
            reason = await self._stream.run()
            return self.term is not None, reason
        finally:
            self._stream = None
            self.term = None
            call.cancel()
            await channel.close()

    def _put(self, **item: object) -> None:
        self._outbox.put(WorkerReport(**item))  # type: ignore[arg-type] # one field of the oneof

    def _take(self, command: WorkerCommand) -> None:
        if command.HasField("welcome"):
            self._welcome(command.welcome.term, command.welcome.lease_key)
            return
        try:
            self._obey(command)
        except Exception:
            # A fault of ours is this item's; to end the session would let it come again.
            log.exception("command_failed", item=command.WhichOneof("item"))

    def _obey(self, command: WorkerCommand) -> None:
        kind = command.WhichOneof("item")
        if kind == "drain":  # an operator's word, whoever leads
            drain = command.drain
            self._on_drain(drain.deadline_ms / 1000 if drain.HasField("deadline_ms") else None)
        elif kind == "void" and self.term and self.term == self._slots.term:
            freed = self._slots.void(command.void.lease_id)
            log.info("lease_voided", lease_id=command.void.lease_id, runs=freed is None)
            if freed is not None:
                self.report(WorkerReport(slot_freed=freed))

    def _welcome(self, term: int, key: bytes) -> None:
        former = self._slots.term
        leads = self._slots.lead(term, key)
        self.term = term
        log.info("scheduler_welcomed", address=self._address, term=term, leads=leads)
        if self._slots.term > former:
            self._on_new_term()
