"""One Attach stream to a worker: what is to be sent, what runs on it, who is told of its events.

When it breaks, everything that ran on it is lost; the next Start opens a new one.
"""

from __future__ import annotations  # grpc's classes are generic in their stubs only

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Protocol

import grpc
import grpc.aio
import structlog

from edge.turns import Grant
from fastrun.service.streams import DuplexStream
from fastrun.v1 import worker_pb2_grpc
from fastrun.v1.error_pb2 import ErrorDetail, ErrorReason
from fastrun.v1.generation_pb2 import Accepted, Delta, Finished, GenerateEvent, GenerateRequest
from fastrun.v1.worker_pb2 import Abort, EdgeFrame, EdgeFrameItem, Ping, Start, StreamEvent

log = structlog.get_logger()

# A worker that cannot tell whose slot it is, or has a fault, may free none: the scheduler asks it.
_DOUBTFUL = frozenset({ErrorReason.ERROR_REASON_LEASE_REFUSED, ErrorReason.ERROR_REASON_INTERNAL})


class Sink(Protocol):
    """Takes the events of one generation, in order; none of these may block.

    One that raises is a fault of ours: it ends this generation and no other.
    """

    def on_accepted(self, accepted: Accepted) -> None:
        """The worker runs it."""

    def on_delta(self, delta: Delta) -> None:
        """More was generated."""

    def on_finished(self, finished: Finished) -> None:
        """It ended well; the last event."""

    def on_failed(self, error: ErrorDetail) -> None:
        """The worker refused it or failed; the last event."""

    def on_lost(self, *, was_sent: bool) -> None:
        """The way to the worker broke, or it said nothing more once aborted; the last event.

        Args:
            was_sent: the worker may have run it.
        """

    def on_fault(self, fault: Exception) -> None:
        """One of the others raised: what came is not taken, and it is aborted. Must not raise."""


class Leases(Protocol):
    """Who is told what became of a lease."""

    def release(self, grant: Grant) -> None:
        """Its Start was never written."""

    def lost(self, grant: Grant, *, refused: bool) -> None:
        """Its Start was written and nobody says that it ended: the way broke, or it was refused."""

    def ended(self, grant: Grant) -> None:
        """The worker said that it ended, or ends it with the stream that we have closed."""


class Call:
    """One generation on one worker."""

    def __init__(self, attach: Attach, stream_id: int, grant: Grant, sink: Sink) -> None:
        self.stream_id = stream_id
        self.grant = grant
        self.sink = sink
        self.was_sent = False
        self.is_aborting = False
        self._attach = attach

    def abort(self) -> None:
        """End it early. Idempotent, also after its end; a Start not yet written is never sent."""
        if not self.is_aborting:
            self.is_aborting = True
            self._attach.abort(self)


class Attach:
    """Many generations on one stream."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        leases: Leases,
        *,
        connect_timeout_s: float,
        abort_timeout_s: float,
        on_end: Callable[[str, int], None],
    ) -> None:
        """Prepare; the first start() connects.

        Args:
            channel: to the worker.
            leases: told what became of each lease.
            connect_timeout_s: how long the worker may take to accept the connection.
            abort_timeout_s: how long the end of an aborted generation is waited for.
            on_end: told why the stream ended, and how many generations were lost with it.
        """
        self._channel = channel
        self._leases = leases
        self._connect_timeout_s = connect_timeout_s
        self._abort_timeout_s = abort_timeout_s
        self._on_end = on_end
        self._calls: dict[int, Call] = {}
        self._items: list[EdgeFrameItem] = []
        self._stream: DuplexStream | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    @property
    def is_open(self) -> bool:
        """Whether the stream lives or is being opened."""
        return self._task is not None

    def start(
        self, stream_id: int, grant: Grant, request: GenerateRequest, sink: Sink, *, gathers: bool
    ) -> Call:
        """Send a Start soon; the sink gets exactly one last event, also when it is aborted.

        Args:
            stream_id: never used before.
            grant: what it runs by.
            request: what is to be generated.
            sink: who is told.
            gathers: nobody reads along, so deltas need not come one by one.
        """
        start = Start(stream_id=stream_id, request=request, gathers=gathers)
        call = self._calls[stream_id] = Call(self, stream_id, grant, sink)
        self._put(EdgeFrameItem(start=start))
        if self._task is None:
            self._task = asyncio.create_task(self._live(), name="attach", context=Context())
        return call

    def abort(self, call: Call) -> None:
        """See Call.abort."""
        if self._calls.get(call.stream_id) is not call:
            return
        if not call.was_sent:
            self._items = [each for each in self._items if each.start.stream_id != call.stream_id]
            del self._calls[call.stream_id]
            self._leases.release(call.grant)
            self._lose(call)
            return
        self._put(EdgeFrameItem(abort=Abort(stream_id=call.stream_id)))
        loop = asyncio.get_running_loop()
        loop.call_later(self._abort_timeout_s, self._give_up, call)

    def take(self) -> EdgeFrame | None:
        """Return all that waits to be written; from here on the worker may have seen it."""
        if not self._items:
            return None
        items, self._items = self._items, []
        for item in items:
            if item.HasField("start"):
                self._calls[item.start.stream_id].was_sent = True
        return EdgeFrame(items=items)

    async def close(self) -> None:
        """End the stream for good; the worker aborts what runs on it, and is not to blame."""
        self._is_closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _put(self, item: EdgeFrameItem) -> None:
        self._items.append(item)
        if self._stream is not None:
            self._stream.wake()

    async def _live(self) -> None:
        """Connect, drive the stream to its end, and tell everyone on it."""
        reason = "cancelled"
        try:
            if await self._connected():
                reason = await self._run()
            else:
                reason = "the worker accepts no connection"
        except Exception:
            log.exception("attach_failed")
            reason = "an event could not be taken"
        finally:
            self._task = self._stream = None
            self._end(reason)

    async def _connected(self) -> bool:
        """Wait for the connection, so that no Start counts as sent with nobody there to take it."""
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                state = self._channel.get_state(try_to_connect=True)
                while state is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        return False
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
        except TimeoutError:
            return False
        return True

    async def _run(self) -> str:
        call = worker_pb2_grpc.WorkerServiceStub(self._channel).Attach()
        stream = DuplexStream(
            call,
            self,
            on_item=self._on_item,
            ping=lambda: self._items.append(EdgeFrameItem(ping=Ping())),
        )
        stream.wake()
        self._stream = stream
        try:
            return await stream.run()
        finally:
            call.cancel()

    def _on_item(self, item: StreamEvent) -> None:
        call = self._calls.get(item.stream_id)
        if call is None:  # a Ping, or an event of a generation that is closed
            return
        try:
            self._hand_out(call, item.event)
        except Exception as fault:
            log.exception("sink_failed", stream_id=call.stream_id)
            call.sink.on_fault(fault)
            if item.stream_id in self._calls:
                call.abort()
            else:
                self._lose(call)  # that was its last event

    def _hand_out(self, call: Call, event: GenerateEvent) -> None:
        kind = event.WhichOneof("event")
        if kind == "delta":
            call.sink.on_delta(event.delta)
        elif kind == "accepted":
            call.sink.on_accepted(event.accepted)
        elif kind == "finished":
            self._forget(call)
            call.sink.on_finished(event.finished)
        elif kind == "failed":
            if event.failed.error.reason in _DOUBTFUL:
                self._doubt(call)
            else:
                self._forget(call)
            call.sink.on_failed(event.failed.error)

    def _forget(self, call: Call) -> None:
        if self._calls.pop(call.stream_id, None) is not None:
            self._leases.ended(call.grant)

    def _give_up(self, call: Call) -> None:
        """Wait no longer for the end of what was aborted."""
        if self._calls.get(call.stream_id) is call:
            self._forget(call)
            self._lose(call)

    def _lose(self, call: Call) -> None:
        try:
            call.sink.on_lost(was_sent=call.was_sent)
        except Exception as fault:
            log.exception("sink_failed", stream_id=call.stream_id)
            call.sink.on_fault(fault)

    def _doubt(self, call: Call) -> None:
        if self._calls.pop(call.stream_id, None) is not None:
            self._leases.lost(call.grant, refused=True)

    def _end(self, reason: str) -> None:
        calls, self._calls, self._items = self._calls, {}, []
        for call in calls.values():
            if not call.was_sent:
                self._leases.release(call.grant)
            elif self._is_closing:
                self._leases.ended(call.grant)
            else:
                self._leases.lost(call.grant, refused=False)
            self._lose(call)
        self._on_end(reason, len(calls))
