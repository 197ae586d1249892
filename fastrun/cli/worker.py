"""`fastrun worker`: let machines join a deployment, each with one command."""

import importlib
import os
import re
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path
from secrets import SystemRandom
from typing import Annotated

import msgspec
import typer

from fastrun.cli import joining
from fastrun.cli.connection import TIMEOUT_S, Auth, ContextName, ask, auth_service
from fastrun.cli.data import Data
from fastrun.cli.errors import CommandError
from fastrun.cli.group import group
from fastrun.cli.joined import Joined, WorkerFolder, default_folder, environment
from fastrun.cli.output import Json, moment, print_json
from fastrun.cli.smoke import smoke
from fastrun.cli.verifying import verify
from fastrun.service.config import host_and_port
from fastrun.service.identity import Identity, Role
from fastrun.service.join_token import JoinToken, new_secret, secret_sha256
from fastrun.service.tls import Tls, TlsError, is_loopback
from fastrun.v1 import admin_pb2, admin_pb2_grpc

app = group(
    "worker",
    help="Let a GPU server join a deployment, and run its worker.",
    epilog="Example: fastrun worker join head.example.org:7004 --token frw_...",
)

PORT = 7003
REACH_S = 3.0

WorkerData = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="The worker's folder.  [the user's data folder]"),
]


@app.command(epilog="Example: fastrun worker token --worker gpu-1")
def token(
    worker: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Only for the worker of this name; a machine that has it is replaced.  "
            "[any name that is free]",
        ),
    ] = "",
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Make a token by which one machine can join. It is good for an hour, and shown this once."""
    if worker:
        _identity(worker)
    secret = new_secret(SystemRandom())
    request = admin_pb2.CreateWorkerTokenRequest(
        token_sha256=secret_sha256(secret), worker_id=worker
    )
    service = auth_service(auth, data, context)
    answer = ask(
        service,
        lambda channel: admin_pb2_grpc.AdminServiceStub(channel).CreateWorkerToken(
            request, timeout=TIMEOUT_S
        ),
    )
    text = JoinToken(secret, answer.ca_sha256).text
    if as_json:
        fields = {"worker": worker or None, "expires_at": moment(answer.expires_at)}
        print_json({"token": text, "port": answer.port, **fields})
        return
    print(text)
    host = service.address.rpartition(":")[0]
    if is_loopback(service.address) or not {".", ":"} & set(host):
        host = "HEAD"  # a name that means something on this machine or among its containers only
    name = f" --name {worker}" if worker else ""
    # Beside the token, which scripts read.
    print(f"good once, until {moment(answer.expires_at)}. On the GPU server:", file=sys.stderr)
    print(f"    fastrun worker join {host}:{answer.port}{name} --token {text}", file=sys.stderr)


@app.command(epilog="Example: fastrun worker join head.example.org:7004 --token frw_...")
def join(
    head: Annotated[
        str, typer.Argument(metavar="HEAD:PORT", help="Where the deployment lets machines join.")
    ],
    token: Annotated[
        str,
        typer.Option(
            envvar="FASTRUN_JOIN_TOKEN",
            help="As fastrun worker token shows it; not needed once this machine has joined.",
        ),
    ] = "",
    name: Annotated[
        str,
        typer.Option(
            envvar="FASTRUN_JOIN_NAME",
            help="The worker's name in the fleet, for good.  [the host's name]",
        ),
    ] = "",
    model: Annotated[
        str | None, typer.Option(help="What it serves, as FASTRUN_WORKER_MODEL.")
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where edges reach it.  [the address by which it reaches the head]",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help=f"Where it listens.  [{PORT}]")
    ] = None,
    no_start: Annotated[
        bool, typer.Option("--no-start", help="Join only; fastrun worker run starts it.")
    ] = False,
    data: WorkerData = None,
) -> None:
    """Make this machine a worker of a deployment, and run it. Once more: run it."""
    if not no_start:
        _check_packages()
    _check_address(head, "HEAD:PORT")
    if advertise:
        _check_address(advertise, "--advertise")
    folder = _folder(data)
    folder.take()
    parsed = _parsed(token)
    before = folder.joined()
    if parsed and before and secret_sha256(parsed.secret).hex() == before.token_sha256:
        parsed = None  # as it still stands in some file: it has done its work
    if before is None or not _stands(folder, parsed, name):
        joined = _enrol(folder, head, parsed, name or (before.worker_id if before else _host()))
    else:
        joined = msgspec.structs.replace(before, head=head)
    joined = msgspec.structs.replace(
        joined,
        port=port or (before.port if before else PORT),
        advertise=_chosen(advertise, before.advertise if before else ""),
        model=_chosen(model, before.model if before else ""),
    )
    folder.note(joined)
    standing = folder.standing()
    assert standing is not None
    print(
        f"this machine is {Role.WORKER}/{joined.worker_id} of {head} until "
        f"{standing.expires_at:%Y-%m-%d}, which the worker renews while it runs",
        file=sys.stderr,
    )
    _check_reach(joined)
    if not no_start:
        _start(folder, joined)


@app.command(epilog="Example: fastrun worker run --data /var/lib/fastrun-worker")
def run(data: WorkerData = None) -> None:
    """Run the worker of a machine that has joined."""
    folder = _folder(data)
    joined = folder.joined()
    if joined is None:
        raise CommandError(
            f"there is no worker in {folder.path}: join first, with fastrun worker join"
        )
    _check_packages()
    folder.take()
    _stands(folder, None, "")
    _start(folder, joined)


def _check_packages() -> None:
    """Make sure that a worker can be loaded here: a token that it was given is spent only then.

    Raises:
        ModuleNotFoundError: a package is missing.
    """
    importlib.import_module("gpu_worker.engines")


def _stands(folder: WorkerFolder, token: JoinToken | None, name: str) -> bool:
    """Whether what a folder holds will do.

    Raises:
        CommandError: it will not, and there is no token to change that.
    """
    standing = folder.standing()
    now = datetime.now(UTC)
    if standing is None:
        problem = f"the certificate in {folder.path} is missing or damaged"
    elif standing.expires_at <= now:
        problem = (
            f"the certificate of this machine ended on {standing.expires_at:%Y-%m-%d %H:%M} UTC"
        )
    elif name not in ("", standing.worker_id):
        problem = f"this machine is worker {standing.worker_id} already"
    elif token is not None and token.ca_sha256 != standing.ca_sha256:
        problem = "this machine is a worker of another deployment"
    else:
        return True
    if token is None:
        raise CommandError(f"{problem}: join again, with a token of fastrun worker token")
    return False


def _enrol(folder: WorkerFolder, head: str, token: JoinToken | None, name: str) -> Joined:
    if token is None:
        raise CommandError(
            "this machine has not joined yet: make a token with fastrun worker token on the head, "
            "and give it with --token"
        )
    _identity(name)
    key = folder.pending_key(joining.new_key)
    answer = joining.join(head, token, name, key)
    joined = Joined(
        head=head,
        token_sha256=secret_sha256(token.secret).hex(),
        worker_id=name,
        schedulers=list(answer.addresses.schedulers),
        auth=answer.addresses.auth,
        port=PORT,
    )
    folder.keep(joined, cert=answer.cert_pem, ca=answer.ca_pem)
    return joined


def _start(folder: WorkerFolder, joined: Joined) -> None:
    """Become the worker: no process stands between it and who stops it."""
    joined = _refreshed(folder, joined)
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: a folder `gpu_worker` where somebody calls fastrun is not ours.
    os.execve(  # noqa: S606 - our own module, on purpose without a shell
        sys.executable,
        [sys.executable, "-P", "-m", "gpu_worker"],
        environment(folder.path, joined, os.environ),
    )


def _refreshed(folder: WorkerFolder, joined: Joined) -> Joined:
    """What may have changed on the head while no worker ran here."""
    try:
        tls = Tls.of_folder(folder.path)
    except TlsError as error:
        raise CommandError(f"{error}; join again, with a new token") from error
    answer = joining.renew(joined.auth_address(), tls)
    if answer is None:
        return joined
    folder.renewed(cert=answer.cert_pem, ca=answer.ca_pem)
    fresh = msgspec.structs.replace(
        joined, schedulers=list(answer.addresses.schedulers), auth=answer.addresses.auth
    )
    if fresh != joined:
        folder.note(fresh)
    return fresh


def _check_reach(joined: Joined) -> None:
    """Say at once what the worker would say in its log again and again."""
    for address in (*joined.scheduler_addresses(), joined.auth_address()):
        try:
            socket.create_connection(host_and_port(address), timeout=REACH_S).close()
        except OSError:
            print(
                f"fastrun: {address} cannot be reached from here: let it through the head's "
                "firewall, or set FASTRUN_AUTH_ENROL_SCHEDULER_ADDRESSES and "
                "FASTRUN_AUTH_ENROL_AUTH_ADDRESS there",
                file=sys.stderr,
            )


def _folder(data: Path | None) -> WorkerFolder:
    return WorkerFolder((data or default_folder(os.environ)).expanduser().absolute())


def _parsed(token: str) -> JoinToken | None:
    try:
        return JoinToken.parse(token) if token else None
    except ValueError as error:
        raise CommandError(str(error)) from error


def _identity(name: str) -> Identity:
    try:
        return Identity(Role.WORKER, name)
    except ValueError as error:
        raise CommandError(str(error)) from error


def _check_address(address: str, what: str) -> None:
    if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):\d{1,5}", address):
        raise CommandError(f"{what} is a host and a port, such as head.example.org:7004")


def _host() -> str:
    """The host's name, as far as it can be a worker's."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:63].lstrip("._-")
    return name or "worker"


def _chosen(given: str | None, before: str) -> str:
    return before if given is None else given


app.command(epilog="Example: fastrun worker verify")(verify)
app.command(epilog="Example: fastrun worker smoke --model Qwen3-32B=/models/Qwen3-32B")(smoke)
