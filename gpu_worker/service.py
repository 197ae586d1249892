"""The life of a worker: load the model, serve, register, drain, stop; or die with its engine."""

import asyncio
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog

import fastrun
from fastrun.service import tracing
from fastrun.service.config import host_and_port
from fastrun.service.lifecycle import StartError
from fastrun.service.metrics import AdminServer
from fastrun.service.rpc import RpcServer
from fastrun.service.tls import Tls
from fastrun.v1 import worker_pb2
from fastrun.v1.scheduler_pb2 import WorkerHello, WorkerState
from fastrun.v1.worker_pb2 import GetInfoResponse
from fastrun.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server
from gpu_worker import addresses, gpus, memory
from gpu_worker.config import Config
from gpu_worker.drain import LAST_WORDS_S, Drain
from gpu_worker.engine.protocol import Engine, EngineDeadError
from gpu_worker.generation import Model
from gpu_worker.memory import MemoryBound
from gpu_worker.metrics import Metrics
from gpu_worker.registration import Registration
from gpu_worker.renewal import Renewal
from gpu_worker.servicer import WorkerServicer
from gpu_worker.slots import Slots
from gpu_worker.vitals import Vitals
from gpu_worker.worker import Worker

log = structlog.get_logger()

CHECK_INTERVAL_S = 1.0
PROMPT_THREADS = 2

Load = Callable[[], Awaitable[tuple[Engine, Model]]]


class WorkerProcess:
    """Wires the worker; what lifecycle.run() drives."""

    def __init__(
        self,
        config: Config,
        load: Load,
        *,
        leave: Callable[[int], None],
        drained: asyncio.Event | None = None,
    ) -> None:
        """Prepare what does not need the model.

        Args:
            config: the settings.
            load: makes engine and model; raises StartError.
            leave: ends the process at once, with a status.
            drained: set when it has drained, also where an operator has asked for it.
        """
        self._config = config
        self._load = load
        self._leave = leave
        self._drained = drained or asyncio.Event()
        self._problem: str | None = "the model is being loaded"
        self._dead = False
        self._metrics = Metrics(config.slots)
        self._admin = AdminServer(self._metrics.registry, alive=self._alive, ready=self._ready)
        self._tls = Tls.of(config)
        self._tracer = tracing.tracer(config.otlp_endpoint, "worker", disabled=config.otlp_disabled)
        self._rpc = RpcServer(self._tls, tracer=self._tracer)
        self._executor = ThreadPoolExecutor(PROMPT_THREADS, thread_name_prefix="prompt")
        self._slots = Slots(
            config.slots, instance_id=uuid.uuid4().hex, standalone=config.standalone
        )
        self._engine: Engine | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> Mapping[str, int]:
        """Load the model, serve, and tell the schedulers."""
        if not (self._config.standalone or self._config.scheduler_addresses):
            raise StartError(
                "a worker needs its schedulers: set FASTRUN_WORKER_SCHEDULER_ADDRESSES, "
                "or FASTRUN_WORKER_STANDALONE=true to do without"
            )
        admin_port = self._admin.start(*host_and_port(self._config.admin_listen))
        engine, model = await self._load()
        self._engine = engine
        self._metrics.loaded(model.card.model, engine.name)
        self._memory = self._memory_bound(engine)
        self._vitals = Vitals(engine, self._slots, self._metrics)
        self._registration = Registration(
            [] if self._config.standalone else self._config.scheduler_addresses,
            slots=self._slots,
            heartbeat=lambda: self._vitals.heartbeat(moved=self._worker.moved),
            on_drain=self._on_drain,
            tls=self._tls,
        )
        self._worker = Worker(
            engine=engine,
            model=model,
            slots=self._slots,
            executor=self._executor,
            metrics=self._metrics,
            tracer=self._tracer,
            on_freed=self._registration.freed,
            on_dead=self._die,
        )
        self._drain = Drain(self._worker, announce=self._announce_drain, ended=self._drained)
        info = self._info(engine, model)
        service = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"]
        servicer = WorkerServicer(self._worker, info, self._on_drain)
        self._rpc.add(service, add_WorkerServiceServicer_to_server, servicer)
        port = await self._rpc.start(self._config.listen)
        info.worker_id = self._config.worker_id or f"{socket.gethostname()}:{port}"
        identity = await self._identity(info, port)
        self._background(self._registration.run(identity), "registration")
        if self._tls is not None and self._config.renew_address:
            self._background(self._renewal(self._tls).run(), "renewal")
        self._background(self._check_engine(), "engine-check")
        self._problem = None
        return {"grpc": port, "admin": admin_port}

    async def drain(self) -> None:
        """Ask the schedulers for no more grants, and finish what was granted or let it move."""
        self._begin_drain(self._config.drain_s, or_sooner=True)
        await self._drained.wait()

    async def stop(self) -> None:
        """Move what still runs, and free all memory."""
        self._slots.close()
        if self._slots.in_use and not self._dead:
            self._begin_drain(0)
            await self._drained.wait()
        await self._rpc.stop(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._engine is not None:
            await self._engine.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        await self._tracer.close()
        self._admin.close()

    def _on_drain(self, deadline_s: float | None) -> None:
        """Do what an operator asks for; the process ends when it has drained."""
        self._begin_drain(self._config.drain_s if deadline_s is None else deadline_s)

    def _begin_drain(self, deadline_s: float, *, or_sooner: bool = False) -> None:
        begun = self._drain.begun
        self._drain.within(deadline_s, or_sooner=or_sooner)
        if not begun:
            self._background(self._drain.run(), "drain")

    async def _announce_drain(self) -> bool:
        await self._serve_no_more("the worker is draining")
        return self._registration.welcomed

    async def _serve_no_more(self, problem: str) -> None:
        """Tell whoever asks, and the schedulers, that this worker takes nothing new."""
        self._problem = problem
        self._vitals.state = WorkerState.WORKER_STATE_DRAINING
        self._registration.beat()
        await self._rpc.not_serving()

    def _die(self, error: EngineDeadError) -> None:
        """Fail what runs and end the process, so that a supervisor starts a new one."""
        if self._dead:
            return
        self._dead = self._vitals.engine_dead = True
        log.error("engine_dead", reason=str(error))
        self._metrics.healthy(is_healthy=False)
        self._slots.close()
        self._worker.fail_all(error)
        self._background(self._leave_soon(f"the engine is dead: {error}"), "last-words")

    async def _leave_soon(self, problem: str) -> None:
        await self._serve_no_more(problem)
        await asyncio.sleep(LAST_WORDS_S)
        self._leave(1)

    async def _check_engine(self) -> None:
        while not self._dead:
            try:
                self._vitals.check()
            except EngineDeadError as error:
                self._die(error)
            await self._check_memory()
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _check_memory(self) -> None:
        """Drain a process that has grown too large: a supervisor starts a new one."""
        # In a thread: with hundreds of them to look at, it takes longer than a step of the engine.
        over = await asyncio.to_thread(self._memory.exceeded_by)
        if over and not self._drain.begun:
            log.warning("memory_bound_exceeded", over_mib=over >> 20)
            self._on_drain(None)

    def _memory_bound(self, engine: Engine) -> MemoryBound:
        held = memory.resident()
        if not self._config.recycle_mib:
            bound = memory.own_bound(held, memory.available()) if engine.grows else None
            return MemoryBound(bound)
        limit = self._config.recycle_mib << 20
        if held > limit:
            raise StartError(
                f"the worker holds {held >> 20} MiB once it has started: raise "
                "FASTRUN_WORKER_RECYCLE_MIB"
            )
        return MemoryBound(limit)

    def _background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._watch_background)
        self._tasks.append(task)

    def _watch_background(self, task: asyncio.Task[None]) -> None:
        """Let no bug silence heartbeats or health checks: a supervisor starts a new process."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background_task_crashed", task=task.get_name(), exc_info=error)
            self._leave(1)

    def _alive(self) -> str | None:
        return self._problem if self._dead else None

    def _ready(self) -> str | None:
        if self._problem is not None or self._config.standalone:
            return self._problem
        return None if self._registration.welcomed else "no scheduler has welcomed this worker"

    def _info(self, engine: Engine, model: Model) -> GetInfoResponse:
        return GetInfoResponse(
            instance_id=self._slots.instance_id,
            model=model.card,
            slots=self._slots.capacity,
            engine=engine.name,
            version=fastrun.__version__,
            gpus=_gpus(engine.gpus),
        )

    def _renewal(self, tls: Tls) -> Renewal:
        files = {"cert": Path(self._config.tls_cert), "ca": Path(self._config.tls_ca)}
        return Renewal(self._config.renew_address, tls, **files)

    async def _identity(self, info: GetInfoResponse, port: int) -> WorkerHello:
        schedulers = self._config.scheduler_addresses
        return WorkerHello(
            worker_id=info.worker_id,
            instance_id=info.instance_id,
            address=self._config.advertise_address
            or await addresses.advertised(self._config.listen, port, schedulers),
            model=info.model,
            slots=info.slots,
            version=info.version,
            gpus=info.gpus,
        )


def _gpus(count: int) -> list[worker_pb2.Gpu]:
    """Return what an engine computes on: the first of those that it may use."""
    found = gpus.find(os.environ.get("CUDA_VISIBLE_DEVICES")) if count else []
    return [worker_pb2.Gpu(name=gpu.name, memory_bytes=gpu.memory_bytes) for gpu in found[:count]]
