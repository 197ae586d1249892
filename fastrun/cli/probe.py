"""`fastrun probe`: the health check of a container, which has no curl."""

import http.client
from typing import Annotated

import typer

from fastrun.cli.errors import CommandError
from fastrun.cli.group import group
from fastrun.cli.output import Json, print_json

app = group()

TIMEOUT_S = 2.0


@app.command(epilog="Example: fastrun probe 127.0.0.1:9101")
def probe(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="A service's admin port.")],
    path: Annotated[str, typer.Option(help="What to ask for.")] = "/readyz",
    as_json: Json = False,
) -> None:
    """Succeed if the service at an admin port is ready."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        answer = response.read().decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        raise CommandError(f"nothing answers at {address}: {error}") from error
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise CommandError(f"{address} is not ready: {answer}")
    if as_json:
        print_json({"address": address, "answer": answer})
