"""Requests as they come, from all edges, and what became of them."""

from __future__ import annotations  # grpc's classes are generic in their stubs only

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from random import Random
from typing import TYPE_CHECKING

import grpc.aio
import msgspec

from fastrun.bench.scheduler.lateness import Lateness
from fastrun.bench.scheduler.requests import Mix, acquires
from fastrun.bench.scheduler.sessions import EdgeSide, Session, SessionError, WorkerSide
from fastrun.service import rpc
from fastrun.service.identity import Role
from fastrun.service.tls import Tls
from fastrun.v1.scheduler_pb2 import EdgeReply, Granted
from fastrun.v1.scheduler_pb2_grpc import SchedulerServiceStub

if TYPE_CHECKING:
    from fastrun.v1.scheduler_pb2_grpc import SchedulerServiceAsyncStub

CONNECT_S = 120.0
ANSWER_S = 30.0
TICK_S = 0.001


class Open(msgspec.Struct, frozen=True, kw_only=True):
    """Requests come as they come, whatever becomes of those before."""

    rate: float
    """Of them in a second."""
    seconds: float


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """The next one comes when one is answered."""

    at_once: int
    requests: int


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    waits_s: list[float]
    """From the moment an edge asks to the moment it has its slot, of each request."""
    took_s: float
    refused: int
    queued: int
    late_s: list[float]
    """How late the load itself was, at many moments: it was too busy, or had no core."""


class UnansweredError(SessionError):
    """Requests were neither granted nor refused, and no session has ended."""


class Load:
    """The edges and workers of one scheduler.

    Args:
        edges: how many.
        workers: how many.
        slots: of each worker.
        hold_s: how long a request runs.
    """

    def __init__(self, *, edges: int, workers: int, slots: int, hold_s: float) -> None:
        self._hold_s = hold_s
        self._edges = [EdgeSide(number, self._on_answer) for number in range(edges)]
        self._workers = [WorkerSide(number, slots) for number in range(workers)]
        self._by_name = {worker.name: worker for worker in self._workers}
        self._tasks: list[asyncio.Task[None]] = []
        self._channels: list[grpc.aio.Channel] = []
        self._asked: dict[str, tuple[float, int]] = {}
        """When, and tokens of the prompt, by request."""
        self._waits_s: list[float] = []
        self._refused = 0
        self._queued = 0
        self._running = 0
        self._answered = asyncio.Event()
        self._lateness = Lateness()
        self._on_turn: Callable[[], None] | None = None
        self._seed = 0

    async def connect(self, address: str, edge: Tls, worker: Tls) -> None:
        """Open all sessions, each on a connection of its own, and wait until they are welcome.

        Raises:
            SessionError: they are not.
        """
        for side in self._edges:
            stub = self._stub(address, edge)
            self._tasks.append(asyncio.create_task(side.run(stub), name=side.name))
        for each in self._workers:
            stub = self._stub(address, worker)
            self._tasks.append(asyncio.create_task(each.run(stub), name=each.name))
            await self._until(each.welcomed, each)
        for side in self._edges:
            await self._until(side.settled, side)

    async def close(self) -> None:
        """End all sessions."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            await channel.close()

    async def run(self, plan: Open | Closed, mix: Mix) -> Answered:
        """Ask for slots as planned, and wait until all requests have ended.

        Raises:
            SessionError: a session has ended, a request was not answered, or a worker was granted
                more than it has.
        """
        self._seed += 1
        self._waits_s, self._refused, self._queued = [], 0, 0
        arrivals_s = _arrivals_s(plan, self._seed) if isinstance(plan, Open) else ()
        count = plan.requests if isinstance(plan, Closed) else len(arrivals_s)
        # Made before they are needed: what that takes would be the load's own time.
        made = list(islice(acquires(mix, self._seed), count))
        requests = zip(made, cycle(self._edges), strict=False)

        def ask() -> None:
            acquire, edge = next(requests)
            self._asked[acquire.request_id] = (time.perf_counter(), acquire.prompt_tokens)
            edge.ask(acquire)

        self._lateness = Lateness()
        async with self._lateness.watched():
            began = time.perf_counter()
            if isinstance(plan, Open):
                await self._ask_openly(arrivals_s, ask)
            else:
                await self._ask_in_turn(plan, ask)
            took_s = time.perf_counter() - began
            await self._until_idle()
        return Answered(
            waits_s=sorted(self._waits_s),
            took_s=took_s,
            refused=self._refused,
            queued=self._queued,
            late_s=sorted(self._lateness.late_s),
        )

    async def _ask_openly(self, arrivals_s: Sequence[float], ask: Callable[[], None]) -> None:
        began = time.perf_counter()
        for arrival_s in arrivals_s:
            while (early_s := began + arrival_s - time.perf_counter()) > 0:
                self._check()
                await asyncio.sleep(max(early_s, TICK_S))
            ask()

    async def _ask_in_turn(self, plan: Closed, ask: Callable[[], None]) -> None:
        left = plan.requests

        def turn() -> None:
            nonlocal left
            if left:
                left -= 1
                ask()

        self._on_turn = turn
        try:
            for _ in range(plan.at_once):
                turn()
            while left or self._asked:
                await self._progress()
        finally:
            self._on_turn = None

    async def _until_idle(self) -> None:
        while self._asked or self._running:
            await self._progress()

    async def _progress(self) -> None:
        """Wait until something is answered or ends."""
        self._answered.clear()
        try:
            await asyncio.wait_for(self._answered.wait(), ANSWER_S + self._hold_s)
        except TimeoutError:
            self._check()
            raise UnansweredError(
                f"{len(self._asked)} requests were not answered and {self._running} did not end "
                f"in {ANSWER_S:.0f} s; the load itself stood still for "
                f"{self._lateness.most_s:.1f} s at most"
            ) from None
        self._check()

    def _on_answer(self, kind: str | None, reply: EdgeReply) -> None:
        if kind == "queued":
            self._queued += 1
        elif kind == "granted":
            self._granted(reply.granted)
        elif kind == "rejected":
            del self._asked[reply.rejected.request_id]
            self._refused += 1
            self._next()

    def _granted(self, granted: Granted) -> None:
        asked_at, prompt_tokens = self._asked.pop(granted.request_id)
        self._waits_s.append(time.perf_counter() - asked_at)
        worker = self._by_name[granted.worker_id]
        worker.start(granted, prompt_tokens)
        self._running += 1
        asyncio.get_running_loop().call_later(self._hold_s, self._end, worker, granted)
        self._next()

    def _end(self, worker: WorkerSide, granted: Granted) -> None:
        worker.end(granted)
        self._running -= 1
        self._answered.set()

    def _next(self) -> None:
        self._answered.set()
        if self._on_turn is not None:
            self._on_turn()

    def _check(self) -> None:
        """Raise what has ended a session."""
        for task in self._tasks:
            if task.done():
                task.result()

    def _stub(self, address: str, tls: Tls) -> SchedulerServiceAsyncStub:
        self._channels.append(rpc.channel(address, Role.SCHEDULER, tls))
        stub: SchedulerServiceAsyncStub = SchedulerServiceStub(self._channels[-1])
        return stub

    async def _until(self, event: asyncio.Event, session: Session) -> None:
        waiting = asyncio.create_task(event.wait())
        await asyncio.wait(
            {waiting, *self._tasks}, timeout=CONNECT_S, return_when=asyncio.FIRST_COMPLETED
        )
        waiting.cancel()
        self._check()
        if not event.is_set():
            raise SessionError(f"no scheduler has welcomed {session.name} in {CONNECT_S:.0f} s")


def _arrivals_s(plan: Open, seed: int) -> Sequence[float]:
    """Return when requests come that do not know of each other."""
    random = Random(-seed)  # noqa: S311 - makes load, hides nothing
    arrivals_s: list[float] = []
    at_s = random.expovariate(plan.rate)
    while at_s <= plan.seconds:
        arrivals_s.append(at_s)
        at_s += random.expovariate(plan.rate)
    return arrivals_s
