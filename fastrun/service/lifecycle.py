"""How a service lives: start, serve until a signal, drain with grace, stop; a second one exits."""

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

import structlog

from fastrun.service import logs, parent

log = structlog.get_logger()

OPEN_FILES = 65_536


class Service(Protocol):
    """What run() drives."""

    async def start(self) -> Mapping[str, int]:
        """Return when the service serves.

        Returns:
            The ports it listens on, by name, such as ``{"grpc": 7001, "admin": 9101}``.

        Raises:
            StartError: it cannot, with one sentence that says what to do.
        """

    async def drain(self) -> None:
        """Take nothing new and return when all that runs has ended; cancelled after the grace."""

    async def stop(self) -> None:
        """Close everything."""


class StartError(Exception):
    """The service cannot start; the message says what to do."""


class ListenError(OSError):
    """A service cannot listen where its settings say.

    Args:
        address: host:port.
    """

    def __init__(self, address: str) -> None:
        super().__init__(
            f"cannot listen on {address}: stop what has the port, or set another address; "
            "fastrun doctor names both"
        )


def run(
    service: Callable[[], Service], *, grace_s: float, ended: asyncio.Event | None = None
) -> None:
    """Run a service until SIGTERM or SIGINT, then leave the process with its exit status.

    Args:
        service: makes the service inside the running event loop; may raise StartError.
        grace_s: how long drain() may take.
        ended: set by a service that ends without a signal, once nothing runs any more.
    """
    parent.follow(os.environ)
    _open_many_files()
    runner = _runner()
    sys.exit(runner(_live(service, grace_s, ended or asyncio.Event())))


async def _live(make: Callable[[], Service], grace_s: float, ended: asyncio.Event) -> int:
    asyncio.get_running_loop().set_exception_handler(logs.on_loop_error)
    stopping = _signals()
    try:
        service = make()
    except StartError as error:
        return _not_started(error)
    try:
        starting = asyncio.create_task(service.start())
        stop = asyncio.create_task(stopping.wait())
        await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            return 0
        ports = await starting
        _keep_for_good()
        log.info("service_started", pid=os.getpid(), **ports)
        parent.tell(os.environ, {"ports": dict(ports)})
        await _either(stop, asyncio.create_task(ended.wait()))
        log.info("service_draining", grace_s=grace_s)
        await _bounded(service.drain(), grace_s)
    except (StartError, OSError) as error:
        return _not_started(error)
    finally:
        await service.stop()
    log.info("service_stopped")
    return 0


def _keep_for_good() -> None:
    """Leave what is there at the start out of every later collection: that took 50 ms each."""
    gc.collect()
    gc.freeze()


def _not_started(error: Exception) -> int:
    log.error("service_not_started", reason=str(error))
    parent.tell(os.environ, {"error": str(error)})
    return 1


async def _either(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _bounded(work: Coroutine[Any, Any, None], limit_s: float) -> None:
    try:
        await asyncio.wait_for(work, limit_s)
    except TimeoutError:
        log.warning("drain_cut_short", grace_s=limit_s)


def _signals() -> asyncio.Event:
    """Return an event that the first SIGTERM or SIGINT sets; the second one exits at once."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            os._exit(130)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stopping


def _open_many_files() -> None:
    """Take what the system allows: each client is a file, and many systems begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _runner() -> Callable[[Coroutine[Any, Any, int]], int]:
    """Return uvloop's run where it is installed (a GPU image has none), else asyncio's."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.run
    return uvloop.run
