"""Limits of accounts and keys, as they are given to commands and shown."""

from collections.abc import Mapping
from typing import Annotated

import typer

from fastrun.cli.output import print_columns, print_json
from fastrun.v1.auth_pb2 import Limits

NONE = "none"
NAMES = ("requests_per_minute", "tokens_per_minute", "concurrent_requests", "tokens_per_month")

_MOST = 10**15  # more is refused by the auth service, and does not fit a message at last
_METAVAR = "N|none"

RequestsPerMinute = Annotated[
    str | None, typer.Option(metavar=_METAVAR, help="Requests in any 60 s.")
]
TokensPerMinute = Annotated[
    str | None, typer.Option(metavar=_METAVAR, help="Tokens of prompts and answers in any 60 s.")
]
ConcurrentRequests = Annotated[
    str | None, typer.Option(metavar=_METAVAR, help="Requests that wait or run at once.")
]
TokensPerMonth = Annotated[
    str | None, typer.Option(metavar=_METAVAR, help="Tokens since the month began, in UTC.")
]


def given(**options: str | None) -> dict[str, int | None]:
    """Read the limits that were given, by name; None: there is to be none.

    Raises:
        BadParameter: one is neither a number that can be a limit nor `none`.
    """
    return {name: _limit(name, text) for name, text in options.items() if text is not None}


def changed(limits: Limits, changes: Mapping[str, int | None]) -> Limits:
    """The limits after some of them have changed."""
    after = fields(limits) | dict(changes)
    return Limits(**{name: value for name, value in after.items() if value is not None})


def fields(limits: Limits) -> dict[str, int | None]:
    """All of them by name; None: no limit."""
    return dict.fromkeys(NAMES) | {field.name: value for field, value in limits.ListFields()}


def text(limits: Limits) -> str:
    """Those that there are, in few words."""
    there = {name: value for name, value in fields(limits).items() if value is not None}
    return ", ".join(f"{value} {_words(name)}" for name, value in there.items()) or "-"


def show(limits: Limits, *, as_json: bool) -> None:
    """Print all of them."""
    if as_json:
        print_json(fields(limits))
    else:
        print_columns(
            ("limit", "at most"),
            [
                (_words(name), NONE if value is None else f"{value:,}")
                for name, value in fields(limits).items()
            ],
            right=("at most",),
        )


def _limit(name: str, text: str) -> int | None:
    if text == NONE:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST)):
        value = int(text)
        if 1 <= value <= _MOST:
            return value
    raise typer.BadParameter(
        f"{text!r} is neither a whole number from 1 to {_MOST} nor {NONE}",
        param_hint="--" + name.replace("_", "-"),
    )


def _words(name: str) -> str:
    return name.replace("_", " ")
