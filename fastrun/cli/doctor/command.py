"""What is looked at, and how it is shown."""

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fastrun.cli.connection import ContextName, auth_service, context_of, scheduler_service
from fastrun.cli.contexts import Context
from fastrun.cli.data import Data, data_folder
from fastrun.cli.doctor import certificates, deployment, host, local
from fastrun.cli.doctor.finding import Finding, State, wrong
from fastrun.cli.errors import CommandError
from fastrun.cli.group import group
from fastrun.cli.output import Json, print_json
from fastrun.local.errors import LocalError
from fastrun.service.identity import Role
from fastrun.service.terminal import printable

app = group()

PORT = 8000
_COLOURS = {
    State.OK: typer.colors.GREEN,
    State.WARNING: typer.colors.YELLOW,
    State.WRONG: typer.colors.RED,
    State.SKIPPED: None,
}


@app.command(epilog="Example: fastrun doctor")
def doctor(
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="That fastrun up is to serve, where it does not run."),
    ] = PORT,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Look at ports, Postgres, certificates, clocks, disk, model, GPU and versions.

    About the stack of fastrun up here; or about the services that FASTRUN_* settings describe; or
    about the deployment of a context, as far as it shows from here. Exits with status 1 if
    something is wrong.
    """
    findings: list[Finding] = []
    for finding in _findings(port, data, context):
        if finding in findings:  # what several services share is told once
            continue
        findings.append(finding)
        if not as_json:
            typer.secho(f"{finding.state:<9}", fg=_COLOURS[finding.state], nl=False)
            typer.echo(f"{finding.check:<13}{printable(finding.says)}")
    if as_json:
        print_json([_fields(finding) for finding in findings])
    if any(finding.state is State.WRONG for finding in findings):
        raise typer.Exit(1)


def _findings(port: int, data: Path | None, context: str | None) -> Iterator[Finding]:
    """Look at what is meant; what cannot even be begun is a finding, too."""
    now = datetime.now(UTC)
    try:
        found = context_of(data, context)
        environ = _of_host(data, context, found)
        if roles := host.described(environ):
            yield from host.check(roles, environ, now)
        elif found is not None:
            yield from _context(found, context, now)
        else:
            yield from local.check(data_folder(data), os.environ, port=port, now=now)
    except (CommandError, LocalError) as error:
        yield wrong("settings", str(error))


def _of_host(data: Path | None, context: str | None, found: Context | None) -> Mapping[str, str]:
    """The settings that describe services of this machine; none: something else is meant.

    Args:
        data: as it was given.
        context: as it was given.
        found: the context that is meant.
    """
    if data is not None:
        return host.of_joined(os.environ, data.expanduser().absolute())
    # A command of `fastrun up --exec` is about the stack around it.
    if context or os.environ.get("FASTRUN_CONTEXT") or os.environ.get("FASTRUN_DATA"):
        return {}
    # What stands in the environment is nearer than what was once chosen for all commands.
    if found is not None and not host.described(os.environ):
        return {}
    return host.with_joined(os.environ)


def _context(found: Context, name: str | None, now: datetime) -> Iterator[Finding]:
    if found.tls is not None:
        cure = "get another one made by fastrun operator add"
        yield certificates.check(
            f"operator {found.operator}", Role.OPERATOR, found.tls, cure=cure, now=now
        )
    yield from deployment.check(auth_service(None, None, name), scheduler_service(None, None, name))


def _fields(finding: Finding) -> dict[str, Any]:
    return {"check": finding.check, "state": finding.state, "says": finding.says}
