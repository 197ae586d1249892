"""Long-lived streams between services: one reader, one writer, an outbox, and pings.

In grpc.aio a cancelled read() or write() cancels the whole RPC, and only one write may be pending.
So each stream has exactly one reader and one writer task that nothing else awaits; everybody else
appends to an outbox, and the writer sends all that is ready in one message.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import grpc.aio

PING_INTERVAL_S = 2.0
SILENCE_LIMIT_S = 5.0
BLOCKED_WRITE_LIMIT_S = 10.0
WATCH_INTERVAL_S = 0.5
# The longest pause between two tries to reach a scheduler. When a scheduler begins, it waits 2 s
# for its fleet (its warm_up_s): a worker that tries every 2 s comes too late on a busy machine, and
# clients are told that there is none.
SCHEDULER_RETRY_S = 1.0
MAX_MESSAGE_BYTES = 1 << 20
# What grpc.aio raises, by how far the call was when its other side went.
_ENDED = (
    grpc.aio.UsageError,
    grpc.aio.InternalError,
    asyncio.InvalidStateError,
    grpc.RpcError,
)
# Why a stream ended that its other side has ended in good order, as one that stops does.
CLOSED = "closed by the other side"


class Message(Protocol):
    """A protobuf message whose one repeated field is ``items``."""

    @property
    def items(self) -> Any:
        """The batch."""

    def ByteSize(self) -> int:  # noqa: N802 - protobuf's name
        """Length of the encoding."""


MessageT = TypeVar("MessageT", bound=Message)
ItemT = TypeVar("ItemT")


class Transport(Protocol):
    """What a client's call and a server's context have in common."""

    def read(self) -> Awaitable[Any]:
        """Return the next message, or grpc.aio.EOF."""

    def write(self, message: Any) -> Awaitable[None]:
        """Return when the message has been taken."""


class Source(Protocol):
    """Where the writer gets what to send."""

    def take(self) -> Message | None:
        """Return all that is ready as one message and forget it; None when nothing is."""


class Outbox(Generic[ItemT]):
    """Items in the order they were put, taken as one message."""

    def __init__(self, message: Callable[..., Message]) -> None:
        self._message = message
        self._items: list[ItemT] = []

    def put(self, item: ItemT) -> None:
        """Append; never blocks."""
        self._items.append(item)

    def take(self) -> Message | None:
        """Return all that was put since the last call."""
        if not self._items:
            return None
        items, self._items = self._items, []
        return self._message(items=items)


class DuplexStream:
    """Drives one long-lived stream, from either side, until it ends."""

    def __init__(
        self,
        transport: Transport,
        source: Source,
        *,
        on_item: Callable[[Any], None],
        ping: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wire a stream.

        Args:
            transport: a client's call or a server's context.
            source: what to send; call wake() after adding to it.
            on_item: called for every item received, in order; must not block.
            ping: adds a Ping to the source.
            clock: monotonic seconds.
        """
        self._transport = transport
        self._source = source
        self._on_item = on_item
        self._ping = ping
        self._clock = clock
        self._ready = asyncio.Event()
        self._closing = asyncio.Event()
        self._received_at = clock()
        self._sent_at = clock()
        self._write_began_at: float | None = None

    def wake(self) -> None:
        """Tell the writer that the source has something."""
        self._ready.set()

    def close(self) -> None:
        """End the stream soon; run() returns."""
        self._closing.set()

    async def run(self) -> str:
        """Read, write and ping until the stream ends.

        Returns:
            Why it ended, for the log.
        """
        self._received_at = self._clock()
        tasks = [
            asyncio.create_task(self._read(), name="stream-reader"),
            asyncio.create_task(self._write(), name="stream-writer"),
            asyncio.create_task(self._watch(), name="stream-watch"),
            asyncio.create_task(self._closed(), name="stream-closing"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return _reason(done)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> str:
        while True:
            message = await self._transport.read()
            if message is grpc.aio.EOF:
                return CLOSED
            self._received_at = self._clock()
            for item in message.items:
                self._on_item(item)

    async def _write(self) -> str:
        while True:
            await self._ready.wait()
            self._ready.clear()
            message = self._source.take()
            if message is None:
                continue
            for part in split(message):
                self._write_began_at = self._clock()
                await self._transport.write(part)
                self._sent_at = self._write_began_at
                self._write_began_at = None

    async def _watch(self) -> str:
        # Streams that began together, as after a scheduler's start, must not ping together.
        phase = random.random()  # noqa: S311 - spreads, does not hide
        ping_after_s = (1 + phase) / 2 * PING_INTERVAL_S
        await asyncio.sleep(phase * WATCH_INTERVAL_S)
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            now = self._clock()
            if now - self._received_at > SILENCE_LIMIT_S:
                return f"silent for {SILENCE_LIMIT_S:.0f} s"
            began = self._write_began_at
            if began is not None and now - began > BLOCKED_WRITE_LIMIT_S:
                return f"a write was blocked for {BLOCKED_WRITE_LIMIT_S:.0f} s"
            # Any item says that this side lives.
            if now - self._sent_at >= ping_after_s:
                ping_after_s = PING_INTERVAL_S
                self._ping()
                self.wake()

    async def _closed(self) -> str:
        await self._closing.wait()
        return "closed by this side"


def split(message: Message) -> Iterable[Message]:
    """Cut a message into several of at most MAX_MESSAGE_BYTES, as far as its items allow."""
    if len(message.items) < 2 or message.ByteSize() <= MAX_MESSAGE_BYTES:  # a pair at least
        return (message,)
    middle = len(message.items) // 2
    kind = type(message)
    return (
        *split(kind(items=message.items[:middle])),  # type: ignore[call-arg] # a protobuf class
        *split(kind(items=message.items[middle:])),  # type: ignore[call-arg] # a protobuf class
    )


def backoff_s(attempt: int, *, base_s: float = 0.1, cap_s: float = 2.0) -> float:
    """Return how long to wait before try ``attempt`` (1 is the second try): doubled, jittered."""
    doubled: float = min(cap_s, base_s * 2.0 ** min(attempt - 1, 10))
    return doubled * random.uniform(0.5, 1.0)  # noqa: S311 - spreads, does not hide


def _reason(done: Iterable["asyncio.Task[str]"]) -> str:
    for task in done:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, grpc.aio.AioRpcError):
            return f"{error.code().name}: {error.details()}"
        if isinstance(error, _ENDED):
            return f"the call has ended: {error}"
        if error is not None:
            raise error
        if not task.cancelled():
            return task.result()
    return "cancelled"
