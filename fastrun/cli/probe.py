"""`fastrun probe`: the health check of a container, which has no curl."""

from typing import Annotated

import typer

from fastrun.cli.errors import CommandError
from fastrun.cli.group import group
from fastrun.cli.output import Json, print_json
from fastrun.service import probe as service_probe

app = group()


@app.command(epilog="Example: fastrun probe 127.0.0.1:9101")
def probe(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="A service's admin port.")],
    path: Annotated[str, typer.Option(help="What to ask for.")] = "/readyz",
    as_json: Json = False,
) -> None:
    """Succeed if the service at an admin port is ready."""
    try:
        answer = service_probe.probe(address, path)
    except service_probe.ProbeError as error:
        raise CommandError(str(error)) from error
    if as_json:
        print_json({"address": address, "answer": answer})
