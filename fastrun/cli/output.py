"""What commands print: columns for people, JSON for programs."""

import json
from collections.abc import Container, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from fastrun.service.terminal import printable

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: Any) -> None:
    """Print one JSON document on one line."""
    print(json.dumps(value, ensure_ascii=False))


def print_columns(
    titles: Sequence[str], rows: Sequence[Sequence[object]], *, right: Container[str] = ()
) -> None:
    """Print rows under titles, each column as wide as it has to be.

    Args:
        titles: of the columns.
        rows: a cell for each column.
        right: the titles of columns that are aligned to the right, such as amounts.
    """
    for line in columns(titles, rows, right=right):
        print(line)


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
