"""The edge's sessions with the schedulers: asks the leader for slots, and gives leases back.

There is one session with every configured scheduler, and only the one with the highest term seen
is obeyed. When the leader goes, what waits is asked again of the next one, with the time waited.
Each term begins with a Hello to every scheduler: it tells the one that leads what is held here, and
another one that believed to lead that it does not.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextvars import Context

import structlog

import fastrun
from edge.catalogue import Catalogue
from edge.errors import AT_CAPACITY, INTERNAL, NO_SCHEDULER
from edge.scheduler_session import SchedulerSession
from edge.turns import Grant, Turn, Wish
from fastrun.service.errors import ServiceError
from fastrun.service.tls import Tls
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.scheduler_pb2 import (
    Acquire,
    Cancel,
    EdgeHello,
    EdgeMessage,
    EdgeReply,
    Granted,
    LeaseLost,
    Rejected,
    Release,
    WorkerFailed,
)

log = structlog.get_logger()

# The scheduler ends the wait itself; this long after its time the edge does without it.
QUEUE_SLACK_S = 1.0
# A request that has got its first slot waits on for the others: only the whole of it has a limit.
BEGUN_QUEUE_S = 60.0


class SchedulerLink:
    """Gets slots from whichever scheduler leads."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        edge_id: str,
        scheduler_timeout_s: float,
        on_models: Callable[[set[str]], None],
        tls: Tls | None,
    ) -> None:
        """Prepare; start() connects.

        Args:
            addresses: host:port of every scheduler.
            edge_id: new at every start of the process.
            scheduler_timeout_s: how long a wish waits for a leader to be there.
            on_models: told the names of all models once they are known for sure.
            tls: for the sessions; each begins with the certificate that is current then.
        """
        self.catalogue = Catalogue()
        self._edge_id = edge_id
        self._version = fastrun.__version__  # later on that of what has been installed since
        self._scheduler_timeout_s = scheduler_timeout_s
        self._on_models = on_models
        self._sessions = [
            SchedulerSession(
                address, tls, hello=self._hello, on_reply=self._on_reply, on_end=self._on_end
            )
            for address in addresses
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._term = 0
        self._waiting: dict[str, dict[int, Turn]] = {}
        """By request and generation."""
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

    def ask(self, wish: Wish) -> Turn:
        """Ask for slots; whoever asks also calls give_up() at last."""
        turn = Turn(wish, time.monotonic())
        self._waiting.setdefault(wish.request_id, {}).update(dict.fromkeys(wish.generations, turn))
        self._send_or_fail(turn)
        return turn

    def give_up(self, turn: Turn) -> None:
        """Give back what is left of a turn. Idempotent.

        If something of it still waits, the whole request stops waiting.
        """
        granted, still_waited = turn.close()
        for grant in granted:
            self.release(grant)
        for generation in turn.wish.generations:
            self._forget(turn, generation)
        if still_waited:
            self._tell(EdgeMessage(cancel=Cancel(request_id=turn.wish.request_id)))

    def release(self, grant: Grant) -> None:
        """Give back a lease whose Start was never written."""
        self._held.discard(grant.lease_id)
        self._tell(EdgeMessage(release=Release(lease_id=grant.lease_id)))

    def lost(self, grant: Grant, *, refused: bool) -> None:
        """Report that the way to the worker broke after Start was written, or that it refused."""
        self._held.discard(grant.lease_id)
        lost = LeaseLost(lease_id=grant.lease_id, refused=refused)
        self._tell(EdgeMessage(lease_lost=lost))

    def failed(self, grant: Grant) -> None:
        """Report a fault of the worker, which has let go of the lease itself or never had it."""
        failed = WorkerFailed(instance_id=grant.instance_id, lease_id=grant.lease_id)
        self._tell(EdgeMessage(worker_failed=failed))

    def ended(self, grant: Grant) -> None:
        """The worker has said that the generation ended; it tells the scheduler itself."""
        self._held.discard(grant.lease_id)

    def _hello(self) -> EdgeMessage:
        return EdgeMessage(
            hello=EdgeHello(
                edge_id=self._edge_id,
                lease_ids=sorted(self._held),
                term=self._term,
                version=self._version,
            )
        )

    def _on_reply(self, session: SchedulerSession, reply: EdgeReply) -> None:
        kind = reply.WhichOneof("item")
        if kind == "welcome":
            self._on_welcome(session, reply.welcome.term)
            return
        try:
            self._take(session, kind, reply)
        except Exception:
            # A fault of ours is one request's; to end the session would let it come again.
            log.exception("reply_failed", item=kind)
            self._fail_request(session, reply)

    def _take(self, session: SchedulerSession, kind: str | None, reply: EdgeReply) -> None:
        if kind == "granted":
            self._on_granted(session, reply.granted)
        elif session is not self._leader():
            return
        elif kind == "rejected":
            self._on_rejected(reply.rejected)
        elif kind == "models":
            self.catalogue.replace(reply.models)
            if reply.models.complete:
                self._on_models({state.card.model for state in reply.models.models})

    def _on_welcome(self, session: SchedulerSession, term: int) -> None:
        led = session is self._leader()
        session.term = term
        if term < max(self._term, 1):
            if led:
                self._without_leader()
            return
        if term > self._term:
            self._term = term
            for each in self._sessions:
                each.put(self._hello())
        log.info("scheduler_leads", address=session.address, term=term)
        self._ask_again()

    def _on_end(self, term: int) -> None:
        if term == self._term and not self.connected:
            self._without_leader()

    def _without_leader(self) -> None:
        self.catalogue.doubt()
        self._ask_again()

    def _on_granted(self, session: SchedulerSession, granted: Granted) -> None:
        grant = Grant(
            lease_id=granted.lease_id,
            lease=granted.lease,
            worker_id=granted.worker_id,
            instance_id=granted.instance_id,
            address=granted.address,
        )
        turn = self._waiting.get(granted.request_id, {}).get(granted.generation)
        if turn is None or session is not self._leader():
            session.put(EdgeMessage(release=Release(lease_id=granted.lease_id)))
            return
        if granted.HasField("rate_limit"):
            turn.rate_limit = granted.rate_limit
        is_wanted = turn.grant(granted.generation, grant, time.monotonic())
        if is_wanted:
            self._held.add(granted.lease_id)
        else:
            self.release(grant)
        self._forget(turn, granted.generation)

    def _on_rejected(self, rejected: Rejected) -> None:
        waiting = self._waiting.get(rejected.request_id, {})
        error = ServiceError.of(rejected.error)
        out_of_time = rejected.error.reason == ErrorReason.ERROR_REASON_QUEUE_TIMEOUT
        begun: dict[Turn, None] = {}  # each is asked once for all that it waits for
        for generation in list(rejected.generations or waiting):
            turn = waiting.get(generation)
            if turn is None:
                continue
            if out_of_time and turn.has_begun:
                begun[turn] = None
                continue
            if rejected.HasField("rate_limit"):
                turn.rate_limit = rejected.rate_limit
            self._fail(turn, generation, error)
        for turn in begun:
            self._send_or_fail(turn)

    def _fail_request(self, session: SchedulerSession, reply: EdgeReply) -> None:
        """Let a request that a fault of ours keeps from its answer fail, and wait for none."""
        request_id = reply.granted.request_id or reply.rejected.request_id
        lease_id = reply.granted.lease_id
        if lease_id and lease_id not in self._held:
            # Nobody has it who would give it back.
            session.put(EdgeMessage(release=Release(lease_id=lease_id)))
        for turn in dict.fromkeys(self._waiting.get(request_id, {}).values()):
            self._fail_by_fault(turn)

    def _leader(self) -> SchedulerSession | None:
        for session in self._sessions:
            if session.term and session.term == self._term:
                return session
        return None

    def _tell(self, message: EdgeMessage) -> None:
        """Tell the leader; without one the next Hello tells which leases are held and which not."""
        leader = self._leader()
        if leader is not None:
            leader.put(message)

    def _ask_again(self) -> None:
        turns = [turn for waiting in self._waiting.values() for turn in waiting.values()]
        for turn in dict.fromkeys(turns):
            self._send_or_fail(turn)

    def _send_or_fail(self, turn: Turn) -> None:
        try:
            self._send(turn)
        except Exception:
            log.exception("ask_failed", request_id=turn.wish.request_id)
            self._fail_by_fault(turn)

    def _fail_by_fault(self, turn: Turn) -> None:
        turn.stop_timer()
        self._tell(EdgeMessage(cancel=Cancel(request_id=turn.wish.request_id)))
        self._fail_all(turn, ServiceError(ErrorReason.ERROR_REASON_INTERNAL, INTERNAL))

    def _send(self, turn: Turn) -> None:
        """Ask the leader for what a turn waits for, or wait a while for a leader."""
        loop = asyncio.get_running_loop()
        turn.stop_timer()
        wish, caller = turn.wish, turn.wish.caller
        queue_s, waited_s = wish.queue_timeout_s, turn.waited_s(time.monotonic())
        # In all, however often schedulers come and go: it may be what each of them dies of.
        most_s = max(0.0, queue_s + self._scheduler_timeout_s + QUEUE_SLACK_S - waited_s)
        leader = self._leader()
        if leader is None:
            error = ServiceError(ErrorReason.ERROR_REASON_UNAVAILABLE, NO_SCHEDULER)
            left_s = self._scheduler_timeout_s
            if not turn.has_begun:
                left_s = min(left_s, most_s)
            turn.timer = loop.call_later(left_s, self._fail_all, turn, error)
            return
        if turn.has_begun:
            queue_s, waited_s = BEGUN_QUEUE_S, 0.0
        leader.put(
            EdgeMessage(
                acquire=Acquire(
                    request_id=wish.request_id,
                    account_id=caller.account_id,
                    key_id=caller.key_id,
                    account_limits=caller.account_limits,
                    key_limits=caller.key_limits,
                    account_month_tokens=caller.account_month_tokens,
                    key_month_tokens=caller.key_month_tokens,
                    token_estimate=wish.token_estimate,
                    choices=wish.choices,
                    model=wish.model,
                    queue_timeout_ms=int(queue_s * 1000),
                    waited_ms=int(waited_s * 1000),
                    excluded_worker_ids=wish.excluded_worker_ids,
                    front=wish.front or turn.has_begun,
                    generations=turn.waiting,
                    prefix_hashes=wish.prefix.hashes,
                    prefix_tokens=wish.prefix.tokens,
                    prompt_tokens=wish.prefix.prompt_tokens + wish.resumed_tokens,
                    resume=wish.resume,
                    traceparent=wish.traceparent,
                )
            )
        )
        if not turn.has_begun:
            left_s = min(max(0.0, queue_s - waited_s) + QUEUE_SLACK_S, most_s)
            turn.timer = loop.call_later(left_s, self._out_of_time, turn)

    def _out_of_time(self, turn: Turn) -> None:
        self._tell(EdgeMessage(cancel=Cancel(request_id=turn.wish.request_id)))
        self._fail_all(turn, ServiceError(ErrorReason.ERROR_REASON_QUEUE_TIMEOUT, AT_CAPACITY))

    def _fail_all(self, turn: Turn, error: ServiceError) -> None:
        for generation in turn.waiting:
            self._fail(turn, generation, error)

    def _fail(self, turn: Turn, generation: int, error: ServiceError) -> None:
        turn.fail(generation, error)
        self._forget(turn, generation)

    def _forget(self, turn: Turn, generation: int) -> None:
        """A generation of this turn waits no longer."""
        waiting = self._waiting.get(turn.wish.request_id, {})
        if waiting.get(generation) is turn:
            del waiting[generation]
            if not waiting:
                del self._waiting[turn.wish.request_id]
