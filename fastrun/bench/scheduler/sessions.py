"""Simulated edges and workers: their sessions with a scheduler, and nothing behind them."""

from __future__ import annotations  # grpc's classes are generic in their stubs only

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastrun.bench.scheduler.requests import ANSWER_TOKENS, MODEL
from fastrun.service.streams import DuplexStream, Outbox
from fastrun.v1.generation_pb2 import Usage
from fastrun.v1.scheduler_pb2 import (
    Acquire,
    EdgeHello,
    EdgeMessage,
    EdgeMessages,
    EdgeReply,
    Granted,
    Heartbeat,
    SlotFreed,
    WorkerCommand,
    WorkerHello,
    WorkerReport,
    WorkerReports,
    WorkerState,
)
from fastrun.v1.worker_pb2 import ModelCard, Ping

if TYPE_CHECKING:
    from fastrun.v1.scheduler_pb2_grpc import SchedulerServiceAsyncStub

HEARTBEAT_INTERVAL_S = 1.0
GOLDEN = 0.618034
"""Multiples of it are spread evenly, however many there are."""


class SessionError(Exception):
    """A session has ended, or the scheduler has broken a rule; the message says which."""


class Session:
    """One session of one peer; says Hello again once it is told a term."""

    def __init__(self, name: str, messages: Callable[..., Any], item: Callable[..., Any]) -> None:
        self.name = name
        self.welcomed = asyncio.Event()
        """Set once the scheduler leads and knows that we know."""
        self._item = item
        self._outbox: Outbox[Any] = Outbox(messages)
        self._stream: DuplexStream | None = None
        self._term = 0

    def say(self, **item: object) -> None:
        """Send one item soon."""
        self._outbox.put(self._item(**item))
        if self._stream is not None:
            self._stream.wake()

    async def hold(self, call: Any) -> None:
        """Carry items until cancelled.

        Raises:
            SessionError: it has ended otherwise.
        """
        self._stream = DuplexStream(
            call,
            self._outbox,
            on_item=self._take,
            ping=lambda: self._outbox.put(self._item(ping=Ping())),
        )
        self.hello(0)
        try:
            raise SessionError(f"the session of {self.name} has ended: {await self._stream.run()}")
        finally:
            self._stream = None
            call.cancel()

    def hello(self, term: int) -> None:
        """Say Hello with the highest term that was told."""
        raise NotImplementedError

    def heard(self, kind: str | None, item: Any) -> None:
        """Take an item other than a Welcome."""

    def _take(self, item: EdgeReply | WorkerCommand) -> None:
        kind = item.WhichOneof("item")
        if kind != "welcome":
            self.heard(kind, item)
        elif item.welcome.term > self._term:
            if self._term:
                raise SessionError("the scheduler began another term: Postgres kept it waiting")
            self._term = item.welcome.term
            self.hello(self._term)
            self.welcomed.set()


class EdgeSide(Session):
    """One edge.

    Args:
        number: which.
        on_answer: told of each answer's kind and the answer itself.
    """

    def __init__(self, number: int, on_answer: Callable[[str | None, EdgeReply], None]) -> None:
        super().__init__(f"edge-{number}", EdgeMessages, EdgeMessage)
        self.settled = asyncio.Event()
        """Set once the scheduler has waited long enough for workers to come."""
        self._on_answer = on_answer

    async def run(self, stub: SchedulerServiceAsyncStub) -> None:
        """Hold the session until cancelled."""
        await self.hold(stub.EdgeSession())

    def ask(self, acquire: Acquire) -> None:
        """Ask for a slot."""
        self.say(acquire=acquire)

    def hello(self, term: int) -> None:
        """See Session."""
        self.say(hello=EdgeHello(edge_id=self.name, term=term))

    def heard(self, kind: str | None, item: EdgeReply) -> None:
        """See Session."""
        if kind != "models":
            self._on_answer(kind, item)
        elif item.models.complete:
            self.settled.set()


class WorkerSide(Session):
    """One worker, whose requests take as long as they are told to."""

    def __init__(self, number: int, slots: int) -> None:
        super().__init__(f"worker-{number}", WorkerReports, WorkerReport)
        self._number = number
        self._slots = slots
        self._runs: dict[str, int] = {}
        """Tokens of each prompt, by lease."""

    async def run(self, stub: SchedulerServiceAsyncStub) -> None:
        """Hold the session and send heartbeats until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.hold(stub.WorkerSession()))
            tasks.create_task(self._beat())

    def start(self, granted: Granted, prompt_tokens: int) -> None:
        """Begin a request.

        Raises:
            SessionError: there is no slot for it.
        """
        if len(self._runs) >= self._slots:
            raise SessionError(f"{self.name} has {self._slots} slots, and was granted one more")
        self._runs[granted.lease_id] = prompt_tokens

    def end(self, granted: Granted) -> None:
        """End a request, and say so."""
        prompt_tokens = self._runs.pop(granted.lease_id)
        self.say(
            slot_freed=SlotFreed(
                lease_id=granted.lease_id,
                usage=Usage(prompt_tokens=prompt_tokens, completion_tokens=ANSWER_TOKENS),
                request_id=granted.request_id,
                generation=granted.generation,
            )
        )

    def hello(self, term: int) -> None:
        """See Session."""
        self.say(
            hello=WorkerHello(
                worker_id=self.name,
                instance_id=self.name,
                address=f"127.0.0.1:{self._number + 1}",
                model=ModelCard(model=MODEL, context_length=1 << 17),
                slots=self._slots,
                term=term,
            )
        )

    async def _beat(self) -> None:
        await self.welcomed.wait()
        # Workers have begun at any time, and do not beat together.
        await asyncio.sleep(HEARTBEAT_INTERVAL_S * (self._number * GOLDEN % 1))
        while True:
            self.say(
                heartbeat=Heartbeat(
                    running_lease_ids=self._runs,
                    state=WorkerState.WORKER_STATE_SERVING,
                    kv_blocks_used=len(self._runs),
                    kv_blocks_total=4 * self._slots,
                    context_tokens=sum(self._runs.values()),
                )
            )
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)
