"""Starts the scheduler: `python -m scheduler`."""

import asyncio
import gc
import os
import random
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import structlog

from fastrun.service import config, leases, lifecycle, logs, tracing
from fastrun.service.config import host_and_port
from fastrun.service.metrics import AdminServer
from fastrun.service.rpc import RpcServer
from fastrun.service.tls import Tls
from fastrun.v1 import scheduler_pb2, scheduler_pb2_grpc
from scheduler.config import Config
from scheduler.election import Election
from scheduler.metrics import Metrics
from scheduler.ports import Chance
from scheduler.servicer import SchedulerServicer
from scheduler.sessions import Sessions
from scheduler.store import Store

log = structlog.get_logger()

OBSERVE_INTERVAL_S = 1.0
STUCK_AFTER_S = 10.0
STOP_GRACE_S = 1.0
ID_BYTES = 16
# Requests leave next to no cycles behind, and a collection of all objects takes 100 ms in a large
# fleet, for which every request waits. So the young are looked at often, and all of them hardly
# ever: after two hours at 1,000 requests a second.
GC_THRESHOLDS = (1_000, 2, 50_000)


class Scheduler:
    """The wiring: one set of sessions, one servicer, one admin port."""

    def __init__(self, config: Config, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._metrics = Metrics()
        self._tracer = tracing.tracer(
            config.otlp_endpoint, "scheduler", disabled=config.otlp_disabled
        )
        self._server = RpcServer(Tls.of(config), tracer=self._tracer)
        self._admin = AdminServer(
            self._metrics.registry, alive=self._stuck, ready=self._why_not_ready
        )
        self._not_ready: str | None = "starting"
        self._observed_at = time.monotonic()
        self._observing: asyncio.Task[None] | None = None
        chance = Chance(
            new_id=lambda: secrets.token_hex(ID_BYTES),
            new_key=lambda: secrets.token_bytes(leases.KEY_BYTES),
            random=random.random,
            wall_clock=time.time,
        )
        sessions = Sessions(
            config, now=clock(), chance=chance, recorder=self._metrics, tracer=self._tracer
        )
        self._election = (
            Election(
                Store(config.database_url, chance.new_id()),
                sessions,
                clock=clock,
                on_change=self._told,
            )
            if config.database_url
            else None
        )
        self._servicer = SchedulerServicer(
            config,
            sessions,
            self._metrics,
            clock=clock,
            forget=self._election.forget if self._election else partial(_forget, sessions),
        )

    async def start(self) -> Mapping[str, int]:
        """Serve."""
        admin_port = self._admin.start(*host_and_port(self._config.admin_listen))
        self._server.add(
            scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"],
            scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server,
            self._servicer,
        )
        grpc_port = await self._server.start(self._config.listen)
        self._servicer.start()
        if self._election is not None:
            self._election.start()
        self._observing = asyncio.create_task(self._observe(), name="observe")
        self._not_ready = None
        return {"grpc": grpc_port, "admin": admin_port}

    async def drain(self) -> None:
        """Tell health checks; nothing runs here that had to end first."""
        self._not_ready = "stopping"
        await self._server.not_serving()

    async def stop(self) -> None:
        """Let another one lead, and close everything."""
        if self._observing is not None:
            self._observing.cancel()
        self._servicer.close()
        if self._election is not None:
            await self._election.close()
        await self._server.stop(STOP_GRACE_S)
        await self._tracer.close()
        self._admin.close()

    async def _observe(self) -> None:
        while True:
            try:
                self._metrics.observe(await self._servicer.view())
            except Exception:
                # It is the figures that are lost; the loop, which is watched by this, goes on.
                log.exception("observe_failed")
            self._observed_at = time.monotonic()
            await asyncio.sleep(OBSERVE_INTERVAL_S)

    def _told(self) -> None:
        self._servicer.start()

    def _why_not_ready(self) -> str | None:
        """One that stands by is ready to lead: that it does not is no fault of it."""
        if self._not_ready is None and self._election is not None:
            return self._election.why_not_ready
        return self._not_ready

    def _stuck(self) -> str | None:
        silent_s = time.monotonic() - self._observed_at
        return f"the event loop is stuck for {silent_s:.0f} s" if silent_s > STUCK_AFTER_S else None


async def _forget(sessions: Sessions, model: str) -> None:
    """Forget a model that is kept nowhere."""
    sessions.models.check_forgettable(model)
    sessions.models.forget(model)


def _work_in_batches() -> None:
    """Let no thread be interrupted by one that it wakes, from now on: see decision 62."""
    if hasattr(os, "SCHED_BATCH"):  # on Linux
        with suppress(OSError):  # a sandbox may forbid it, and all works without
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> None:
    """Run until a signal."""
    settings = config.load_or_exit(Config, "scheduler", os.environ)
    logs.configure("scheduler", level=settings.log_level)
    gc.set_threshold(*GC_THRESHOLDS)
    _work_in_batches()
    lifecycle.run(lambda: Scheduler(settings), grace_s=settings.grace_s)


if __name__ == "__main__":
    main()
