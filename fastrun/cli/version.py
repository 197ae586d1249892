"""`fastrun version`."""

from fastrun import __version__
from fastrun.cli.group import group

app = group()


@app.command()
def version() -> None:
    """Show the version."""
    print(__version__)
