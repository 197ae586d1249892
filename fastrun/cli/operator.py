"""`fastrun operator`: certificates for people, each with all that reaching the deployment takes."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509

from fastrun.cli.contexts import Context, render
from fastrun.cli.data import Data, data_folder
from fastrun.cli.errors import CommandError
from fastrun.cli.group import group
from fastrun.cli.output import Json, print_json
from fastrun.local.certificates import open_authority
from fastrun.service import private_file
from fastrun.service.authority import DAYS
from fastrun.service.identity import Identity, Role

app = group(
    "operator",
    help="Let a person operate a deployment from elsewhere.",
    epilog="Example: fastrun operator add alice --certs certs --auth auth.example.org:7001",
)

STDOUT = "-"


@app.command(
    epilog="Example: fastrun operator add alice --certs certs --auth auth.example.org:7001 "
    "--scheduler scheduler.example.org:7002"
)
def add(
    name: Annotated[str, typer.Argument(help="Who it is; stands in the audit log.")],
    certs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The deployment's folder of `fastrun certs`.  [that of `fastrun up` here]",
        ),
    ] = None,
    auth: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The auth service, as that person reaches it."),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="The scheduler, or several, as that person reaches it."
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The API, as that person reaches it; ends in /v1."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long it lives.")] = DAYS,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="- for stdout.  [NAME.toml]")
    ] = "",
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Make a person an operator. What is written is a context, which their `fastrun` takes."""
    identity = _identity(name)
    folder = data_folder(data)
    state = folder.state() if certs is None else None
    auth = auth or (state.auth_address if state else None)
    scheduler = scheduler or (state.schedulers if state else None)
    base_url = base_url or (state.base_url if state else "")
    if auth is None or scheduler is None:
        raise CommandError("say where the services are: give --auth and --scheduler")
    now = datetime.now(UTC)
    authority = open_authority(certs or folder.certs, now)
    issued = authority.issue(identity, now, days)
    expires = x509.load_pem_x509_certificate(issued.cert).not_valid_after_utc
    context = Context(
        auth=auth,
        scheduler=scheduler,
        base_url=base_url,
        operator=name,
        expires=expires,
        cert=issued.cert.decode(),
        key=issued.key.decode(),
        ca=authority.trusted.decode(),
    )
    if output == STDOUT:
        print(render(context), end="")
        return
    path = Path(output or f"{name}.toml")
    _write(path, context)
    if as_json:
        print_json(
            {
                "file": str(path),
                "identity": str(identity),
                "expires_at": expires.isoformat(timespec="seconds"),
            }
        )
        return
    print(f"{path} makes whoever has it {identity} until {expires:%Y-%m-%d}. On their machine:")
    print(f"    fastrun context add NAME {path.name}")


def _identity(name: str) -> Identity:
    try:
        return Identity(Role.OPERATOR, name)
    except ValueError as error:
        raise CommandError(str(error)) from error


def _write(path: Path, context: Context) -> None:
    if path.exists():
        raise CommandError(f"{path} exists: choose another file with --output")
    try:
        private_file.write(path, render(context).encode())
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error
