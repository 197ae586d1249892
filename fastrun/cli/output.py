"""What commands print: tables for people, columns for pipes, JSON for programs."""

import codecs
import json
import sys
from collections.abc import Container, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastrun.service.terminal import printable

if TYPE_CHECKING:
    from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: Any) -> None:
    """Print one JSON document on one line, with its own escapes where the output needs some."""
    is_utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    print(json.dumps(value, ensure_ascii=not is_utf8))


def print_columns(
    titles: Sequence[str], rows: Sequence[Sequence[object]], *, right: Container[str] = ()
) -> None:
    """Print rows under titles: within a terminal's width, else each on a line however long.

    Args:
        titles: of the columns.
        rows: a cell for each column.
        right: the titles of columns that are aligned to the right, such as amounts.
    """
    if not sys.stdout.isatty():
        print("\n".join(columns(titles, rows, right=right)))
        return
    from rich.console import Console  # noqa: PLC0415 - slow, and for terminals only

    Console().print(table(titles, rows, right=right))


def table(
    titles: Sequence[str], rows: Sequence[Sequence[object]], *, right: Container[str] = ()
) -> "Table":
    """The same for a terminal."""
    from rich.table import Table  # noqa: PLC0415 - slow, and for terminals only
    from rich.text import Text  # noqa: PLC0415 - the same

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        made.add_column(
            Text(title.upper()), justify="right" if title in right else "left", overflow="fold"
        )
    for row in rows:
        made.add_row(*(Text(printable(str(cell))) for cell in row))
    return made


def columns(
    titles: Sequence[str], rows: Sequence[Sequence[object]], *, right: Container[str] = ()
) -> list[str]:
    """Lay out rows under titles; pure."""
    cells = [
        [title.upper() for title in titles],
        *([printable(str(cell)) for cell in row] for row in rows),
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    aligned = [str.rjust if title in right else str.ljust for title in titles]
    return [
        "  ".join(
            align(cell, width) for align, cell, width in zip(aligned, row, widths, strict=True)
        ).rstrip()
        for row in cells
    ]


def moment(seconds: float) -> str:
    """Say a time, given in seconds since 1970, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
