"""The SchedulerService over gRPC: carries items to decisions and back, and keeps the time."""

from __future__ import annotations  # grpc's classes are generic in their stubs only

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import grpc.aio
import structlog

from fastrun.service import identity
from fastrun.service.errors import ServiceError
from fastrun.service.streams import DuplexStream, Outbox
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.scheduler_pb2 import (
    DrainWorkerRequest,
    DrainWorkerResponse,
    EdgeMessage,
    EdgeReplies,
    EdgeReply,
    FindUsageRequest,
    FindUsageResponse,
    ForgetModelRequest,
    ForgetModelResponse,
    ListModelsRequest,
    ListModelsResponse,
    WatchFleetRequest,
    WatchFleetResponse,
    WorkerCommand,
    WorkerCommands,
    WorkerReport,
)
from fastrun.v1.scheduler_pb2_grpc import SchedulerServiceServicer
from fastrun.v1.worker_pb2 import Ping
from scheduler.config import Config
from scheduler.fleet import FencedError
from scheduler.links import ProtocolError, StrangerError
from scheduler.metrics import Metrics
from scheduler.sessions import Sessions
from scheduler.view import fleet_view

log = structlog.get_logger()

WATCH_INTERVAL_MIN_S = 0.1
MOST_FOUND = 1000
TICK_AGAIN_S = 1.0

ItemT = TypeVar("ItemT")
Context = grpc.aio.ServicerContext[Any, Any]


class StreamLink(Generic[ItemT]):
    """A session's way back, over its stream."""

    def __init__(
        self, context: Context, outbox: Outbox[ItemT], ping: ItemT, on_item: Callable[[Any], None]
    ) -> None:
        caller = identity.caller()
        self.certificate = caller.name if caller is not None else ""
        self._outbox = outbox
        self._stream = DuplexStream(context, outbox, on_item=on_item, ping=lambda: outbox.put(ping))

    def send(self, item: ItemT) -> None:
        """Append to the outbox."""
        self._outbox.put(item)
        self._stream.wake()

    def close(self) -> None:
        """End the stream soon."""
        self._stream.close()

    async def run(self) -> str:
        """Carry items until the stream ends; returns why."""
        return await self._stream.run()


class SchedulerServicer(SchedulerServiceServicer):
    """Serves edges, workers and tools."""

    def __init__(
        self,
        config: Config,
        sessions: Sessions,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
        forget: Callable[[str], Awaitable[None]],
    ) -> None:
        """Wire it.

        Args:
            config: the settings.
            sessions: what decides.
            metrics: counts.
            clock: monotonic seconds.
            forget: forgets a model, also where it is kept.
        """
        self._forget = forget
        self._drift_after_s = config.drift_after_s
        self._sessions = sessions
        self._metrics = metrics
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._arms_soon = False
        self._closed = False

    async def EdgeSession(  # type: ignore[override] # noqa: N802 - reads and writes by context; gRPC's name
        self, request_iterator: Any, context: Context
    ) -> None:
        """See scheduler.proto."""
        del request_iterator

        def on_item(item: EdgeMessage) -> None:
            began = time.perf_counter()
            self._sessions.of_edges.said(link, item, self._clock())
            if item.HasField("acquire"):
                self._metrics.decided(time.perf_counter() - began)
                log.debug("slot_asked", request_id=item.acquire.request_id)
            self._arm_soon()

        link = StreamLink(context, Outbox[EdgeReply](EdgeReplies), EdgeReply(ping=Ping()), on_item)
        try:
            with _spoken_for():
                reason = await link.run()
            log.info("edge_session_ended", reason=reason)
        finally:
            self._sessions.of_edges.left(link, self._clock())
            self._arm()

    async def WorkerSession(  # type: ignore[override] # noqa: N802 - reads and writes by context; gRPC's name
        self, request_iterator: Any, context: Context
    ) -> None:
        """See scheduler.proto."""
        del request_iterator

        def on_item(item: WorkerReport) -> None:
            self._sessions.of_workers.said(link, item, self._clock())
            self._arm_soon()

        link = StreamLink(
            context, Outbox[WorkerCommand](WorkerCommands), WorkerCommand(ping=Ping()), on_item
        )
        try:
            with _spoken_for():
                reason = await link.run()
            log.info("worker_session_ended", reason=reason)
        finally:
            self._sessions.of_workers.left(link, self._clock())
            self._arm()

    async def ListModels(  # noqa: N802 - gRPC's name
        self, request: ListModelsRequest, context: Context
    ) -> ListModelsResponse:
        """See scheduler.proto."""
        del request, context
        models = self._sessions.models.listed()
        return ListModelsResponse(models=models.models, complete=models.complete)

    async def ForgetModel(  # noqa: N802 - gRPC's name
        self, request: ForgetModelRequest, context: Context
    ) -> ForgetModelResponse:
        """See scheduler.proto."""
        del context
        await self._forget(request.model)
        log.info("model_forgotten", model=request.model)
        return ForgetModelResponse()

    async def WatchFleet(  # noqa: N802 - gRPC's name
        self, request: WatchFleetRequest, context: Context
    ) -> AsyncIterator[WatchFleetResponse]:
        """See scheduler.proto."""
        del context
        while True:
            yield await self.view()
            if not request.interval_ms:
                return
            await asyncio.sleep(max(request.interval_ms / 1000, WATCH_INTERVAL_MIN_S))

    async def DrainWorker(  # noqa: N802 - gRPC's name
        self, request: DrainWorkerRequest, context: Context
    ) -> DrainWorkerResponse:
        """See scheduler.proto."""
        del context
        deadline_ms = request.deadline_ms if request.HasField("deadline_ms") else None
        return self._sessions.of_workers.drain(request.worker_id, deadline_ms)

    async def FindUsage(  # noqa: N802 - gRPC's name
        self, request: FindUsageRequest, context: Context
    ) -> FindUsageResponse:
        """See scheduler.proto."""
        del context
        if len(request.request_ids) > MOST_FOUND:
            raise ServiceError(
                ErrorReason.ERROR_REASON_INVALID_REQUEST,
                f"at most {MOST_FOUND} requests can be asked for at once",
            )
        leases = self._sessions.admission.leases
        return FindUsageResponse(
            generations=self._sessions.usage_log.find(request.request_ids, self._clock()),
            running_request_ids=[each for each in request.request_ids if leases.of_request(each)],
        )

    async def view(self) -> WatchFleetResponse:
        """Describe the fleet now; requests are answered meanwhile."""
        now = self._clock()
        for shown in fleet_view(self._sessions, drift_after_s=self._drift_after_s, now=now):
            view = shown
            await asyncio.sleep(0)
        return view

    def close(self) -> None:
        """End all sessions and stop the timer."""
        self._closed = True
        self._sessions.close()
        if self._timer is not None:
            self._timer.cancel()

    def start(self) -> None:
        """Begin to keep the time; also to be called after the sessions were told something."""
        self._arm()

    def _arm_soon(self) -> None:
        """See what is due once all that came together has been taken."""
        if not self._arms_soon:
            self._arms_soon = True
            asyncio.get_running_loop().call_soon(self._arm)

    def _arm(self, *, least_s: float = 0.0) -> None:
        """Have one timer, for whatever is due first."""
        self._arms_soon = False
        due = None if self._closed else self._sessions.next_due()
        if self._timer is not None:
            if due == self._timer_due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer_due = due
            delay = max(due - self._clock(), least_s)
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self._sessions.tick(self._clock())
        except Exception:
            # What else is due must not wait for ever, and what failed not come again at once.
            log.exception("tick_failed")
            self._arm(least_s=TICK_AGAIN_S)
        else:
            self._arm()


@contextmanager
def _spoken_for() -> Iterator[None]:
    """Tell a peer by its call's status why its session ends."""
    try:
        yield
    except ProtocolError as error:
        raise ServiceError(ErrorReason.ERROR_REASON_INVALID_REQUEST, str(error)) from error
    except StrangerError as error:
        log.warning("hello_refused", reason=str(error))
        raise ServiceError(ErrorReason.ERROR_REASON_PERMISSION_DENIED, str(error)) from error
    except FencedError as error:
        raise ServiceError(ErrorReason.ERROR_REASON_CONFLICT, str(error)) from error
