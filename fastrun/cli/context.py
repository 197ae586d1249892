"""`fastrun context`: the deployments that this user operates."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from fastrun.cli import standard_files
from fastrun.cli.contexts import LOCAL, Contexts, default_folder
from fastrun.cli.errors import CommandError
from fastrun.cli.group import group
from fastrun.cli.output import Json, print_columns, print_json

app = group(
    "context",
    help="Choose the deployment that commands are about.",
    epilog="Example: fastrun context use production",
)

STDIN = "-"
Name = Annotated[str, typer.Argument(help="What you call the deployment.")]


@app.command(epilog="Example: fastrun context add production alice.toml")
def add(
    name: Name,
    file: Annotated[
        str, typer.Argument(help="What `fastrun operator add` has written; - for stdin.")
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="In place of the one of this name.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Keep a context that an operator of the deployment has made."""
    text = standard_files.read_input() if file == STDIN else _read(file)
    contexts = _contexts()
    context = contexts.add(name, text, replace=replace)
    if as_json:
        print_json(_fields(contexts, name))
        return
    who = f" as operator/{context.operator}" if context.operator else ""
    print(f"{name} reaches {context.auth}{who}")
    print(f"    fastrun context use {name}     # from now on")
    print(f"    fastrun fleet --context {name} # once")


@app.command("list", epilog="Example: fastrun context list")
def list_(as_json: Json = False) -> None:
    """List contexts. The current one is what commands are about unless told otherwise."""
    contexts = _contexts()
    current = os.environ.get("FASTRUN_CONTEXT") or contexts.current()
    rows = [_fields(contexts, name) for name in (LOCAL, *contexts.names())]
    if as_json:
        print_json([{**row, "current": row["name"] == current} for row in rows])
    else:
        titles = ("name", "auth", "scheduler", "operator", "expires")
        print_columns(
            ("", *titles),
            [
                ("*" if row["name"] == current else "", *(row[title] or "-" for title in titles))
                for row in rows
            ],
        )


@app.command(epilog="Example: fastrun context use production")
def use(
    name: Annotated[str, typer.Argument(help=f"Its name, or {LOCAL}.")], as_json: Json = False
) -> None:
    """Choose what commands are about from now on. `local` is the stack of `fastrun up` here."""
    _contexts().use(name)
    if as_json:
        print_json({"current": name})
    else:
        print(f"commands are about {name}")


@app.command(epilog="Example: fastrun context remove production")
def remove(name: Name, as_json: Json = False) -> None:
    """Forget a context, and with it its certificate."""
    _contexts().remove(name)
    if as_json:
        print_json({"removed": name})
    else:
        print(f"{name} is forgotten")


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {file}: {error}") from error


def _contexts() -> Contexts:
    return Contexts(default_folder(os.environ))


def _fields(contexts: Contexts, name: str) -> dict[str, Any]:
    if name == LOCAL:
        return {"name": name, "auth": "", "scheduler": "", "operator": "", "expires": None}
    context = contexts.read(name)
    return {
        "name": name,
        "auth": context.auth,
        "scheduler": context.scheduler,
        "operator": context.operator,
        "expires": f"{context.expires:%Y-%m-%d}" if context.expires else None,
    }
