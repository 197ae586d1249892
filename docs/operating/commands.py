"""Writes commands.md from the `fastrun` command: run it after a change of a command."""  # noqa: INP001 - a script

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from fastrun.cli.app import COMMANDS, make_app

PAGE = Path(__file__).with_suffix(".md")

HEAD = """\
# Commands

Made by `docs/operating/commands.py` from `fastrun/cli`. Change that.

`fastrun COMMAND --help` shows the same in a terminal.

## In scripts

Whatever a command shows it prints as one line of JSON with `--json`;
of a fleet that is watched, one line each second.
Answers go to stdout. Progress, warnings and failures go to stderr,
each failure as one sentence that says what to do.

| status | means |
|---|---|
| 0 | It did what it was asked. |
| 1 | It could not, and says why; or something is wrong with what it looked at. |
| 2 | It was called with a wrong option or argument. Of services: a setting is wrong. |
| 130 | Ctrl-C. |
| any | Of `up --exec`: that of the command. |

## In a shell

`fastrun --install-completion` lets bash, zsh, fish and PowerShell complete commands, options
and names of contexts; `fastrun --show-completion` prints what it would install.

## Which deployment

Commands that talk to a deployment take the first of these that there is:
`--context` or `--data`, the variable `FASTRUN_CONTEXT`,
the stack around a command of `fastrun up --exec`, what `fastrun context use` has chosen,
and the stack of `fastrun up` here: see [Security](security.md#operators).
"""


class Leaf(NamedTuple):
    """A command that does something by itself."""

    path: tuple[str, ...]
    command: Any

    @property
    def name(self) -> str:
        """As it is typed."""
        return " ".join(("fastrun", *self.path))

    @property
    def example(self) -> str:
        """A call of it, as its help shows it."""
        return (self.command.epilog or "").removeprefix("Example: ")

    def options(self) -> list[tuple[str, str]]:
        """Its arguments and options, each as it is typed and what it means."""
        context = typer.Context(self.command, info_name=self.name)
        records = [each.get_help_record(context) for each in self.command.params]
        return [record for record in records if record is not None]


def leaves() -> Iterator[Leaf]:
    """Walk through all commands in the order of `fastrun --help`."""
    for name in COMMANDS:
        root: Any = typer.main.get_command(make_app(name))
        yield from _below(root.commands[name], (name,))


def _below(command: Any, path: tuple[str, ...]) -> Iterator[Leaf]:
    below = getattr(command, "commands", {})
    if not below or command.invoke_without_command:
        yield Leaf(path, command)
    for name, each in below.items():
        yield from _below(each, (*path, name))


def render() -> str:
    """Make the whole page."""
    return "\n".join([HEAD, *(line for leaf in leaves() for line in _section(leaf))])


def _section(leaf: Leaf) -> Iterator[str]:
    yield from (f"## {leaf.name}", "")
    yield from (line.strip() for line in (leaf.command.help or "").strip().splitlines())
    yield ""
    yield from ("```", leaf.example, "```", "")
    if rows := [_row(record) for record in leaf.options()]:
        yield from ("| | |", "|---|---|", *rows, "")


def _row(record: tuple[str, str]) -> str:
    name, meaning = record
    return f"| `{_cell(name)}` | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
