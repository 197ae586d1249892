"""WorkerService: many requests on one stream for edges, one by one for tools."""

from __future__ import annotations  # grpc's classes are generic in their stubs only

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import structlog

from fastrun.service.streams import DuplexStream, Transport
from fastrun.v1.generation_pb2 import GenerateEvent, GenerateRequest
from fastrun.v1.worker_pb2 import (
    DrainRequest,
    DrainResponse,
    EdgeFrame,
    EdgeFrameItem,
    GetInfoRequest,
    GetInfoResponse,
    Start,
    WorkerFrame,
)
from fastrun.v1.worker_pb2_grpc import WorkerServiceServicer
from gpu_worker.frames import Frames
from gpu_worker.generation import Generation, internal
from gpu_worker.worker import Worker

log = structlog.get_logger()


class WorkerServicer(WorkerServiceServicer):
    """Answers edges and tools."""

    def __init__(
        self, worker: Worker, info: GetInfoResponse, on_drain: Callable[[float | None], None]
    ) -> None:
        """Serve a worker.

        Args:
            worker: runs the requests.
            info: what GetInfo answers, but for the slots in use.
            on_drain: told to drain within so many seconds; None: as the settings say.
        """
        self._worker = worker
        self._info = info
        self._on_drain = on_drain

    # grpc.aio takes a coroutine that writes to the context as well as a generator.
    async def Attach(  # type: ignore[override] # noqa: N802 - the name in the proto
        self,
        request_iterator: AsyncIterator[EdgeFrame],  # noqa: ARG002 - read by the context instead
        context: grpc.aio.ServicerContext[EdgeFrame, WorkerFrame],
    ) -> None:
        """Run requests until the stream ends, then abort those left."""
        await Attachment(self._worker, context).run()

    async def Generate(  # type: ignore[override] # noqa: N802 - the name in the proto
        self,
        request: GenerateRequest,
        context: grpc.aio.ServicerContext[GenerateRequest, GenerateEvent],
    ) -> None:
        """Run one request; it is aborted when the call is."""
        ready, ended = asyncio.Event(), asyncio.Event()
        frames = Frames(ready.set, later=asyncio.get_running_loop().call_later)
        generation = self._worker.start(request, frames.events(0), on_end=ended.set)
        try:
            while (frame := frames.take()) is not None or not ended.is_set():
                for item in frame.items if frame else ():
                    await context.write(item.event)
                    if item.event.WhichOneof("event") in ("finished", "failed"):
                        return
                await ready.wait()
                ready.clear()
        finally:
            if generation is not None:
                generation.abort()

    async def GetInfo(  # noqa: N802 - the name in the proto
        self, request: GetInfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> GetInfoResponse:
        """Say what this worker is and runs."""
        del request, context
        info = GetInfoResponse()
        info.CopyFrom(self._info)
        info.slots_in_use = self._worker.slots.in_use
        return info

    async def Drain(  # noqa: N802 - the name in the proto
        self, request: DrainRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> DrainResponse:
        """Begin to drain."""
        del context
        self._on_drain(request.deadline_ms / 1000 if request.HasField("deadline_ms") else None)
        return DrainResponse(slots_in_use=self._worker.slots.in_use)


class Attachment:
    """One edge's stream: its requests end with it."""

    def __init__(self, worker: Worker, transport: Transport) -> None:
        self._worker = worker
        self._frames = Frames(self._wake, later=asyncio.get_running_loop().call_later)
        self._stream = DuplexStream(
            transport, self._frames, on_item=self._on_item, ping=self._frames.ping
        )
        self._running: dict[int, Generation] = {}
        self._last_id = 0

    async def run(self) -> None:
        """Serve until the stream ends, for whatever reason."""
        reason = "cancelled"
        log.info("attach_began")
        try:
            reason = await self._stream.run()
        finally:
            log.info("attach_ended", reason=reason, aborted=len(self._running))
            for generation in self._running.values():
                generation.abort()

    def _wake(self) -> None:
        self._stream.wake()

    def _on_item(self, item: EdgeFrameItem) -> None:
        kind = item.WhichOneof("item")
        if kind == "start":
            self._start(item.start)
        elif kind == "abort":
            generation = self._running.get(item.abort.stream_id)
            if generation is not None:
                generation.abort()

    def _start(self, start: Start) -> None:
        stream_id = start.stream_id
        if stream_id <= self._last_id:
            log.warning("attach_broke_protocol", stream_id=stream_id, last_id=self._last_id)
            self._stream.close()
            return
        self._last_id = stream_id
        events = self._frames.events(stream_id, gathers=start.gathers)
        try:
            generation = self._worker.start(
                start.request, events, on_end=lambda: self._running.pop(stream_id, None)
            )
        except Exception:
            # A fault of ours is this request's; to end the stream would end all on it.
            log.exception("start_failed", request_id=start.request.request_id)
            events.failed(internal().detail)
            return
        if generation is not None:
            self._running[stream_id] = generation
