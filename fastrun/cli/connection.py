"""Where the services are that a command talks to, and how talking to them fails."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import grpc.aio
import typer

from fastrun.cli.contexts import LOCAL, Context, Contexts, default_folder
from fastrun.cli.data import data_folder
from fastrun.cli.errors import CommandError, NotReachedError
from fastrun.cli.leading import leading
from fastrun.service import rpc
from fastrun.service.errors import ServiceError
from fastrun.service.identity import Role
from fastrun.service.tls import ClientTls, Tls, TlsError, is_loopback

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
        help="The auth service, where it is not the context's.",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="HOST:PORT",
        envvar="FASTRUN_CLI_SCHEDULER_ADDRESS",
        help="The scheduler, or several separated by commas, where it is not the context's.",
    ),
]


def _context_names(typed: str) -> list[str]:
    names = (LOCAL, *Contexts(default_folder(os.environ)).names())
    return [name for name in names if name.startswith(typed)]


ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        autocompletion=_context_names,
        help="The deployment that is meant; see fastrun context.  [env var: FASTRUN_CONTEXT]",
    ),
]


@dataclass(frozen=True, slots=True)
class Service:
    """A service that a command talks to."""

    address: str
    """host:port; of schedulers also several, separated by commas: the one that leads is meant."""
    role: Role
    tls: ClientTls | None


@dataclass(frozen=True, slots=True)
class _Deployment:
    auth: str = AUTH_ADDRESS
    scheduler: str = SCHEDULER_ADDRESS
    tls: ClientTls | None = None
    plaintext: bool = False
    """Also over a network."""


def auth_service(given: str | None, data: Path | None, context: str | None) -> Service:
    """The auth service that is meant.

    Args:
        given: its address, in place of the deployment's.
        data: the data folder of a stack that runs here.
        context: the name of a context, or the path of its file.

    Raises:
        CommandError: there is no such context, nothing runs in that folder, or it would be
            plaintext over a network.
    """
    deployment = _deployment(given, data, context)
    return _service(given or deployment.auth, Role.AUTH, deployment)


def scheduler_service(given: str | None, data: Path | None, context: str | None) -> Service:
    """The scheduler that is meant, in the same manner; one of several addresses leads."""
    deployment = _deployment(given, data, context)
    return _service(given or deployment.scheduler, Role.SCHEDULER, deployment)


def worker_service(address: str, data: Path | None, context: str | None) -> Service:
    """A worker, at its own address."""
    return _service(address, Role.WORKER, _deployment(address, data, context))


def context_of(data: Path | None, context: str | None) -> Context | None:
    """The context that is meant; None: the stack here.

    Raises:
        CommandError: there is no such context, or both were given.
    """
    if data is not None and context is not None:
        raise CommandError("--data is a stack that runs here and --context another: leave out one")
    name = LOCAL if data is not None else context or _chosen()
    return None if name == LOCAL else Contexts(default_folder(os.environ)).read(name)


def ask(service: Service, talk: Callable[[grpc.aio.Channel], Awaitable[T]]) -> T:
    """Talk to a service.

    Raises:
        CommandError: it refused, with its own words, or cannot be reached.
    """

    async def run() -> T:
        address = service.address
        if "," in address:
            address = await leading(address.split(","), service.tls)
        async with rpc.channel(address, service.role, service.tls) as channel:
            return await talk(channel)

    try:
        return asyncio.run(run())
    except grpc.aio.AioRpcError as error:
        if error.code() in _UNREACHABLE and not _speaks(error):
            raise NotReachedError(why_not_reached(service, error.details() or "")) from error
        raise CommandError(str(ServiceError.of_rpc(error))) from error


def _deployment(given: str | None, data: Path | None, context: str | None) -> _Deployment:
    found = context_of(data, context)
    if found is not None:
        return _Deployment(found.auth, found.scheduler, found.tls, found.plaintext)
    if given and data is None:
        return _Deployment()
    folder = data_folder(data)
    state = folder.state()
    if state is None:
        if data is not None and not given:
            raise NotReachedError(
                f"nothing runs in {folder.path}: start it with fastrun up --data {folder.path}"
            )
        return _Deployment()
    try:
        tls = Tls.of_folder(folder.certs / Role.OPERATOR)
    except TlsError as error:
        raise CommandError(str(error)) from error
    return _Deployment(state.auth_address, state.schedulers, tls)


def _chosen() -> str:
    """The context that is meant where a command is told nothing."""
    if name := os.environ.get("FASTRUN_CONTEXT"):
        return name
    # A command of `fastrun up --exec` is about the stack around it.
    if os.environ.get("FASTRUN_DATA"):
        return LOCAL
    return Contexts(default_folder(os.environ)).current()


def _service(address: str, role: Role, deployment: _Deployment) -> Service:
    for each in address.split(","):
        if deployment.tls is None and not deployment.plaintext and not is_loopback(each):
            raise CommandError(
                f"{each} is not on this machine: say with --context which deployment it is of"
            )
    return Service(address, role, deployment.tls)


_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def _speaks(error: grpc.aio.AioRpcError) -> bool:
    """Whether the service itself has refused."""
    return any(key.startswith("fastrun-") for key, _ in error.trailing_metadata() or ())


def why_not_reached(service: Service, details: str, cure: str | None = None) -> str:
    """Say in a sentence why a service does not answer.

    Args:
        service: which.
        details: gRPC's own words.
        cure: what to do where nothing answers; else what helps whoever has typed a command.
    """
    if service.tls is not None:
        for words, sentence in _TLS_FAILURES.items():
            if words in details:
                return sentence.format(address=service.address, role=service.role)
    if cure is None:
        # Without a certificate it is where a stack would be, if one ran here.
        cure = (
            "start it with fastrun up, or say with --context which deployment is meant"
            if service.tls is None and is_loopback(service.address.partition(",")[0])
            else "is this its address, and does it run?"
        )
    return f"nothing answers at {service.address}: {cure}"


_TLS_FAILURES = {
    "certificate has expired": "the certificate of {address} has expired: renew it with "
    "fastrun certs on its side",
    "CERTIFICATE_VERIFY_FAILED": "{address} is of another deployment than our certificate",
    "Hostname Verification": "what answers at {address} is not the {role} service",
    "WRONG_VERSION_NUMBER": "{address} speaks plaintext: its context needs plaintext = true",
    # It has ended the connection after it saw our certificate.
    "Socket closed": "{address} does not take our certificate: it has expired, or is of another "
    "deployment",
}
