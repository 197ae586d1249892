"""Starts the scheduler: `python -m scheduler`."""

import asyncio
import os
import random
import secrets
import time
import uuid
from collections.abc import Callable, Mapping

from fastrun.service import config, leases, lifecycle, logs
from fastrun.service.config import host_and_port
from fastrun.service.metrics import AdminServer
from fastrun.service.rpc import RpcServer
from fastrun.service.tls import Tls
from fastrun.v1 import scheduler_pb2, scheduler_pb2_grpc
from scheduler.config import Config
from scheduler.metrics import Metrics
from scheduler.ports import Chance
from scheduler.servicer import SchedulerServicer
from scheduler.sessions import Sessions

OBSERVE_INTERVAL_S = 1.0
STUCK_AFTER_S = 10.0
STOP_GRACE_S = 1.0


class Scheduler:
    """The wiring: one set of sessions, one servicer, one admin port."""

    def __init__(self, config: Config, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._metrics = Metrics()
        self._server = RpcServer(Tls.of(config))
        self._admin = AdminServer(
            self._metrics.registry, alive=self._stuck, ready=lambda: self._not_ready
        )
        self._not_ready: str | None = "starting"
        self._observed_at = time.monotonic()
        self._observing: asyncio.Task[None] | None = None
        chance = Chance(
            new_id=lambda: uuid.uuid4().hex,
            new_key=lambda: secrets.token_bytes(leases.KEY_BYTES),
            random=random.random,
            wall_clock=time.time,
        )
        sessions = Sessions(config, now=clock(), chance=chance, recorder=self._metrics)
        self._servicer = SchedulerServicer(config, sessions, self._metrics, clock)

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
        self._observing = asyncio.create_task(self._observe(), name="observe")
        self._not_ready = None
        return {"grpc": grpc_port, "admin": admin_port}

    async def drain(self) -> None:
        """Tell health checks; nothing runs here that would have to end first."""
        self._not_ready = "stopping"
        await self._server.not_serving()

    async def stop(self) -> None:
        """Close everything."""
        if self._observing is not None:
            self._observing.cancel()
        self._servicer.close()
        await self._server.stop(STOP_GRACE_S)
        self._admin.close()

    async def _observe(self) -> None:
        while True:
            self._metrics.observe(self._servicer.view())
            self._observed_at = time.monotonic()
            await asyncio.sleep(OBSERVE_INTERVAL_S)

    def _stuck(self) -> str | None:
        silent_s = time.monotonic() - self._observed_at
        return f"the event loop is stuck for {silent_s:.0f} s" if silent_s > STUCK_AFTER_S else None


def main() -> None:
    """Run until a signal."""
    settings = config.load_or_exit(Config, "scheduler", os.environ)
    logs.configure("scheduler", level=settings.log_level)
    lifecycle.run(lambda: Scheduler(settings), grace_s=settings.grace_s)


if __name__ == "__main__":
    main()
