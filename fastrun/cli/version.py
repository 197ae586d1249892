"""`fastrun version`."""

from fastrun import __version__
from fastrun.cli.group import group
from fastrun.cli.output import Json, print_json

app = group()


@app.command(epilog="Example: fastrun version")
def version(as_json: Json = False) -> None:
    """Show the version."""
    if as_json:
        print_json({"version": __version__})
    else:
        print(__version__)
