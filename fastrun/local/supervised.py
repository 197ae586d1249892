"""Parts of a stack that are started again when they end though nobody asked them to."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fastrun.local import environment
from fastrun.local.child import Child, Lifeline, told
from fastrun.local.errors import LocalError
from fastrun.local.log_file import LogFile
from fastrun.local.output import Output
from fastrun.local.postgres import Postgres, PostgresError
from fastrun.service import config

BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
STEADY_S = 60.0  # who has run so long begins with the shortest wait again
KILL_AFTER_S = 3.0  # beyond the grace that a user has chosen for a service


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one service is run."""

    name: str
    """What people call it, such as `worker 2`."""
    module: str
    """What `python -m` runs."""
    service: str
    """As its settings are named, such as `edge`."""
    settings: Mapping[str, object] = field(default_factory=dict)
    main_port: str = "grpc"
    """The name of the one that others call."""
    keeps_port: bool = True
    """The others have been told of it for good; else it tells them itself whenever it starts."""
    start_s: float = 60.0
    """What it may take until it serves."""
    stop_s: float = 5.0
    """What it may take to end when all is stopped, unless a user has chosen its grace.

    Its own grace is longer: it is for one that is drained by hand while the others go on.
    """


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all services of a stack share."""

    environ: Mapping[str, str]
    lifeline: Lifeline
    logs: Path
    certs: Path
    """What fastrun.local.certificates has made for them."""
    output: Output


class Backoff:
    """How long to wait before the next start; pure.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tries = 0
        self._started_at = clock()

    def started(self) -> None:
        """Note a start that succeeded."""
        self._started_at = self._clock()

    def next_s(self) -> float:
        """Return how long to wait now, in seconds; longer each time, up to a bound."""
        if self._clock() - self._started_at >= STEADY_S:
            self._tries = 0
        wait_s = BACKOFF_S[min(self._tries, len(BACKOFF_S) - 1)]
        self._tries += 1
        return wait_s


class Part(Protocol):
    """What keep() keeps."""

    name: str

    async def start(self) -> object:
        """Start it and wait until it serves.

        Raises:
            LocalError: it cannot; it does not run.
        """

    async def wait(self) -> str:
        """Wait for its end; return how it came."""


async def keep(part: Part, output: Output) -> None:
    """Start a part that runs again whenever it ends, until cancelled."""
    backoff = Backoff()
    while True:
        what = f"{part.name} ended with {await part.wait()}"
        while True:
            wait_s = backoff.next_s()
            output.say(f"{what}: starting it again in {wait_s:g} s")
            await asyncio.sleep(wait_s)
            try:
                await part.start()
            except LocalError as error:
                what = str(error)
            except Exception as error:  # noqa: BLE001 - one fault of ours, and it would stay away
                what = f"{part.name} could not start: {error!r}"
            else:
                break
        backoff.started()
        output.say(f"{part.name} serves again")


class Service:
    """One service as a child process.

    Args:
        plan: how it is run.
        surroundings: what it shares with the others.
        port: the one that others call; 0: a free one, which it has again after a restart.
    """

    def __init__(self, plan: Plan, surroundings: Surroundings, port: int = 0) -> None:
        self.plan = plan
        self.name = plan.name
        self.port = port
        self._around = surroundings
        self._log = LogFile(surroundings.logs / f"{plan.name.replace(' ', '-')}.log")
        self._child: Child | None = None

    @property
    def address(self) -> str:
        """host:port where others call it, once it was started."""
        return f"{environment.LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The id of its process; None before it was started."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Start it and wait until it serves.

        Raises:
            LocalError: it cannot; it does not run.
        """
        plan, around = self.plan, self._around
        self._child = Child(
            plan.name,
            ["-m", plan.module],
            environment.of_service(
                around.environ,
                plan.service,
                {**tls_settings(around.certs / plan.service), **plan.settings},
                port=self.port if plan.keeps_port else 0,
            ),
            lifeline=around.lifeline,
            log=self._log,
            on_line=lambda line: around.output.line_of(plan.name, line),
        )
        ports = await self._child.start(plan.start_s)
        self.port = ports[plan.main_port]

    async def wait(self) -> str:
        """Wait for its end; return how it came."""
        assert self._child is not None
        return told(await self._child.wait())

    async def stop(self) -> None:
        """Let it finish, within bounds. Idempotent."""
        if self._child is not None:
            await self._child.stop(stop_limit_s(self.plan, self._around.environ))
        self._log.close()

    def kill_now(self) -> None:
        """End it at once and wait for nothing."""
        if self._child is not None:
            self._child.kill_now()


def tls_settings(folder: Path) -> dict[str, object]:
    """What a service is told of its certificate.

    Args:
        folder: what it has been given to be known by.
    """
    return {f"tls_{name}": folder / f"{name}.pem" for name in ("cert", "key", "ca")}


def stop_limit_s(plan: Plan, environ: Mapping[str, str]) -> float:
    """How long a service is waited for when all is stopped, in seconds."""
    chosen = config.explicit(plan.service, "grace_s", environ)
    if chosen is None:
        return plan.stop_s
    try:
        return float(chosen[1]) + KILL_AFTER_S
    except ValueError:  # with which the service has not started
        return plan.stop_s


class Database:
    """The embedded Postgres, which blocks and so lives in threads."""

    name = "Postgres"

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self._starting: asyncio.Future[str] | None = None

    def expected_dsn(self) -> str:
        """See Postgres: what start() will return, unless it cannot."""
        return self._postgres.expected_dsn()

    async def start(self) -> str:
        """Start it.

        Returns:
            Its DSN.

        Raises:
            LocalError: it cannot run here.
        """
        self._starting = asyncio.ensure_future(asyncio.to_thread(self._postgres.start))
        try:
            # A thread cannot be cancelled: stop() waits for its end.
            return await asyncio.shield(self._starting)
        except PostgresError as error:
            raise LocalError(str(error)) from error

    async def wait(self) -> str:
        """Wait for its end; return how it came."""
        status = await asyncio.to_thread(self._postgres.wait)
        return told(status if status <= 128 else 128 - status)

    async def stop(self) -> None:
        """Stop it, also one that is still starting. Idempotent."""
        if self._starting is None:
            return
        await asyncio.wait({self._starting})
        if not self._starting.cancelled():
            self._starting.exception()  # told already by whoever started it
        await asyncio.to_thread(self._postgres.stop)
