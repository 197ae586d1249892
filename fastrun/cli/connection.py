"""Where the services are that a command talks to, and how talking to them fails."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import grpc.aio
import typer

from fastrun.cli.data import data_folder
from fastrun.cli.errors import CommandError
from fastrun.service import rpc
from fastrun.service.errors import ServiceError

T = TypeVar("T")

TIMEOUT_S = 10.0
AUTH_ADDRESS = "127.0.0.1:7001"
SCHEDULER_ADDRESS = "127.0.0.1:7002"

Auth = Annotated[
    str | None,
    typer.Option(
        "--auth",
        metavar="HOST:PORT",
        envvar="FASTRUN_CLI_AUTH_ADDRESS",
        help="The auth service, where it is not one of `fastrun up`.",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="HOST:PORT",
        envvar="FASTRUN_CLI_SCHEDULER_ADDRESS",
        help="The scheduler, where it is not one of `fastrun up`.",
    ),
]


def auth_address(given: str | None, data: Path | None) -> str:
    """The auth service's address: the given one, that of the stack that runs, or the usual one."""
    state = None if given else data_folder(data).state()
    return given or (state.auth_address if state else AUTH_ADDRESS)


def scheduler_address(given: str | None, data: Path | None) -> str:
    """The scheduler's address, in the same manner."""
    state = None if given else data_folder(data).state()
    return given or (state.scheduler_address if state else SCHEDULER_ADDRESS)


def ask(address: str, talk: Callable[[grpc.aio.Channel], Awaitable[T]]) -> T:
    """Talk to a service.

    Raises:
        CommandError: it refused, with its own words, or cannot be reached.
    """

    async def run() -> T:
        async with rpc.channel(address) as channel:
            return await talk(channel)

    try:
        return asyncio.run(run())
    except grpc.aio.AioRpcError as error:
        if error.code() in _UNREACHABLE and not _speaks(error):
            raise CommandError(
                f"nothing answers at {address}: start it with fastrun up, or say where it is"
            ) from error
        raise CommandError(str(ServiceError.of_rpc(error))) from error


_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def _speaks(error: grpc.aio.AioRpcError) -> bool:
    """Whether the service itself has refused."""
    return any(key.startswith("fastrun-") for key, _ in error.trailing_metadata() or ())
