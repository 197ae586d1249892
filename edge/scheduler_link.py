"""The edge's sessions with the schedulers: asks the leader for slots, and gives leases back.

There is one session with every configured scheduler, and only the one with the highest term seen
is obeyed. When the leader goes, what waits is asked again of the next one, with the time waited.
"""

import asyncio
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass

import structlog

from edge.catalogue import Catalogue
from edge.errors import AT_CAPACITY, NO_SCHEDULER
from edge.scheduler_session import SchedulerSession
from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.scheduler_pb2 import (
    Acquire,
    Cancel,
    EdgeHello,
    EdgeMessage,
    EdgeReply,
    Granted,
    LeaseLost,
    Release,
)

log = structlog.get_logger()

# The scheduler ends the wait itself; this long after its time the edge does without it.
QUEUE_SLACK_S = 1.0


@dataclass(frozen=True, slots=True)
class Wish:
    """A slot that a request asks for."""

    request_id: str
    account_id: str
    model: str
    queue_timeout_s: float
    """In all."""
    waited_s: float = 0.0
    """Of that, before this wish."""
    excluded_worker_ids: tuple[str, ...] = ()
    front: bool = False
    """A worker refused its lease: it goes to the head of the queue."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A slot of one worker, held by a lease until it is given back or its generation ends."""

    lease_id: str
    lease: bytes
    """Opaque to the edge."""
    worker_id: str
    instance_id: str
    address: str
    """host:port."""


@dataclass(slots=True)
class _Waiter:
    wish: Wish
    since: float
    future: asyncio.Future[Grant]
    timer: asyncio.TimerHandle | None = None


class SchedulerLink:
    """Gets slots from whichever scheduler leads."""

    def __init__(
        self, addresses: Sequence[str], *, edge_id: str, scheduler_timeout_s: float
    ) -> None:
        """Prepare; start() connects.

        Args:
            addresses: host:port of every scheduler.
            edge_id: new at every start of the process.
            scheduler_timeout_s: how long a wish waits for a leader to be there.
        """
        self.catalogue = Catalogue()
        self._edge_id = edge_id
        self._scheduler_timeout_s = scheduler_timeout_s
        self._sessions = [
            SchedulerSession(
                address, hello=self._hello, on_reply=self._on_reply, on_end=self._on_end
            )
            for address in addresses
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._term = 0
        self._waiting: dict[str, _Waiter] = {}
        self._held: set[str] = set()

    @property
    def connected(self) -> bool:
        """Whether a leading scheduler is there."""
        return self._leader() is not None

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot."""
        return len(self._waiting)

    def start(self) -> None:
        """Connect to every scheduler and stay so."""
        self._tasks = [
            asyncio.create_task(session.keep(), name="scheduler-session", context=Context())
            for session in self._sessions
        ]

    async def stop(self) -> None:
        """Close all sessions."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def acquire(self, wish: Wish) -> Grant:
        """Wait for a slot; cancelling this call gives the place in the queue back.

        Raises:
            ServiceError: refused, waited too long, or no scheduler is there.
        """
        loop = asyncio.get_running_loop()
        waiter = _Waiter(wish, loop.time(), loop.create_future())
        self._waiting[wish.request_id] = waiter
        self._ask(waiter)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled():
                if waiter.future.exception() is None:
                    self.release(waiter.future.result())
            else:
                self._tell(EdgeMessage(cancel=Cancel(request_id=wish.request_id)))
            raise
        finally:
            _stop(waiter.timer)
            self._waiting.pop(wish.request_id, None)

    def release(self, grant: Grant) -> None:
        """Give back a lease whose Start was never written."""
        self._held.discard(grant.lease_id)
        self._tell(EdgeMessage(release=Release(lease_id=grant.lease_id)))

    def lost(self, grant: Grant) -> None:
        """Report that the way to the worker broke after Start was written."""
        self._held.discard(grant.lease_id)
        self._tell(EdgeMessage(lease_lost=LeaseLost(lease_id=grant.lease_id)))

    def ended(self, grant: Grant) -> None:
        """The worker has said that the generation ended; it tells the scheduler itself."""
        self._held.discard(grant.lease_id)

    def _hello(self) -> EdgeMessage:
        return EdgeMessage(
            hello=EdgeHello(edge_id=self._edge_id, lease_ids=sorted(self._held), term=self._term)
        )

    def _on_reply(self, session: SchedulerSession, reply: EdgeReply) -> None:
        kind = reply.WhichOneof("item")
        if kind == "welcome":
            self._on_welcome(session, reply.welcome.term)
        elif kind == "granted":
            self._on_granted(session, reply.granted)
        elif session is not self._leader():
            return
        elif kind == "rejected":
            waiter = self._waiting.get(reply.rejected.request_id)
            if waiter is not None:
                _fail(waiter, ServiceError.of(reply.rejected.error))
        elif kind == "models":
            self.catalogue.replace(reply.models)

    def _on_welcome(self, session: SchedulerSession, term: int) -> None:
        session.term = term
        if term < self._term:
            return
        self._term = term
        log.info("scheduler_leads", address=session.address, term=term)
        self._ask_again()

    def _on_end(self, _session: SchedulerSession) -> None:
        if not self.connected:
            self._ask_again()

    def _on_granted(self, session: SchedulerSession, granted: Granted) -> None:
        waiter = self._waiting.get(granted.request_id)
        if session is not self._leader() or waiter is None or waiter.future.done():
            session.put(EdgeMessage(release=Release(lease_id=granted.lease_id)))
            return
        self._held.add(granted.lease_id)
        waiter.future.set_result(
            Grant(
                lease_id=granted.lease_id,
                lease=granted.lease,
                worker_id=granted.worker_id,
                instance_id=granted.instance_id,
                address=granted.address,
            )
        )

    def _leader(self) -> SchedulerSession | None:
        for session in self._sessions:
            if session.term is not None and session.term == self._term:
                return session
        return None

    def _tell(self, message: EdgeMessage) -> None:
        """Tell the leader; without one the next Hello tells which leases are held and which not."""
        leader = self._leader()
        if leader is not None:
            leader.put(message)

    def _ask_again(self) -> None:
        for waiter in self._waiting.values():
            if not waiter.future.done():
                self._ask(waiter)

    def _ask(self, waiter: _Waiter) -> None:
        """Ask the leader for a slot, or wait a while for a leader."""
        loop = asyncio.get_running_loop()
        _stop(waiter.timer)
        leader = self._leader()
        if leader is None:
            waiter.timer = loop.call_later(
                self._scheduler_timeout_s,
                _fail,
                waiter,
                ServiceError(ErrorReason.ERROR_REASON_UNAVAILABLE, NO_SCHEDULER),
            )
            return
        wish = waiter.wish
        waited_s = wish.waited_s + loop.time() - waiter.since
        leader.put(
            EdgeMessage(
                acquire=Acquire(
                    request_id=wish.request_id,
                    account_id=wish.account_id,
                    model=wish.model,
                    queue_timeout_ms=int(wish.queue_timeout_s * 1000),
                    waited_ms=int(waited_s * 1000),
                    excluded_worker_ids=wish.excluded_worker_ids,
                    front=wish.front,
                )
            )
        )
        left_s = max(0.0, wish.queue_timeout_s - waited_s) + QUEUE_SLACK_S
        waiter.timer = loop.call_later(left_s, self._give_up, waiter)

    def _give_up(self, waiter: _Waiter) -> None:
        self._tell(EdgeMessage(cancel=Cancel(request_id=waiter.wish.request_id)))
        _fail(waiter, ServiceError(ErrorReason.ERROR_REASON_QUEUE_TIMEOUT, AT_CAPACITY))


def _fail(waiter: _Waiter, error: ServiceError) -> None:
    if not waiter.future.done():
        waiter.future.set_exception(error)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
