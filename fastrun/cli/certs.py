"""`fastrun certs`: a deployment's CA, and certificates by which its services know each other."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fastrun.cli.contexts import Context, parse, render
from fastrun.cli.errors import CommandError
from fastrun.cli.group import group
from fastrun.cli.output import Json, print_columns, print_json
from fastrun.local.certificates import (
    DEFAULT_NAME,
    EVERYONE,
    Certificate,
    identities_in,
    provide,
)
from fastrun.service import private_file
from fastrun.service.authority import DAYS
from fastrun.service.identity import Identity, Role

app = group()

Days = Annotated[int, typer.Option(min=1, max=3650, help="How long new certificates live.")]
CONTEXT_FILE = "context.toml"


@app.command(epilog="Example: fastrun certs /etc/fastrun/certs edge auth scheduler worker/gpu-1")
def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where they are kept.")],
    identities: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ROLE[/NAME]...",
            help="Whose: edge, auth, scheduler, worker, operator, or worker/gpu-1 and the like.  "
            "[one of each role, and all that DIR has]",
        ),
    ] = None,
    days: Days = DAYS,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make all anew, also those that have time left.")
    ] = False,
    auth: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="With --scheduler: give operators a context."),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="With --auth: the scheduler, or several."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make what is missing of a deployment's certificates, renew what ends soon, and list them."""
    if (auth is None) != (scheduler is None):
        raise CommandError("a context needs both addresses: give --auth and --scheduler")
    wanted = _identities(identities) if identities else {*EVERYONE, *identities_in(folder)}
    made = provide(folder, sorted(wanted, key=str), datetime.now(UTC), days=days, renew=renew)
    for each in made:
        if each.identity.role is Role.OPERATOR:
            _write_context(each, auth, scheduler)
    if as_json:
        print_json([_fields(each) for each in made])
    else:
        print_columns(
            ("identity", "expires", "", "folder"),
            [
                (each.identity, f"{each.expires_at:%Y-%m-%d}", _state(each), each.folder)
                for each in made
            ],
        )


def _identities(texts: Iterable[str]) -> set[Identity]:
    """Read what was asked for; a role alone is its default name."""
    try:
        return {Identity.parse(text if "/" in text else f"{text}/{DEFAULT_NAME}") for text in texts}
    except ValueError as error:
        raise CommandError(str(error)) from error


def _write_context(made: Certificate, auth: str | None, scheduler: str | None) -> None:
    """Write an operator's context; without addresses, anew the one that is there."""
    path = made.folder / CONTEXT_FILE
    if auth is None or scheduler is None:
        if not path.exists():
            return
        before = parse(path.read_text(), str(path))
        auth, scheduler = before.auth, before.scheduler
    context = Context(
        auth=auth,
        scheduler=scheduler,
        operator=made.identity.name,
        expires=made.expires_at,
        cert=(made.folder / "cert.pem").read_text(),
        key=(made.folder / "key.pem").read_text(),
        ca=(made.folder / "ca.pem").read_text(),
    )
    private_file.write(path, render(context).encode())


def _state(made: Certificate) -> str:
    return "new" if made.is_new else "kept"


def _fields(made: Certificate) -> dict[str, Any]:
    return {
        "identity": str(made.identity),
        "expires_at": made.expires_at.isoformat(timespec="seconds"),
        "state": _state(made),
        "folder": str(made.folder),
    }
