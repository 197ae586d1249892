"""Puts figures into a page that people have written."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from fastrun.bench.edge.figures import Figures
from fastrun.bench.edge.table import TEXTS, TITLES, rows

BEGIN, END = "<!-- fastrun bench edge -->", "<!-- end -->"


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """Without which figures say nothing."""

    date: str
    python: str
    """Its version."""
    processor: str
    cores: int
    versions: Mapping[str, str]
    """Of the peers that say one, by name."""


def with_figures(
    page: str, figures: Sequence[Figures], around: Circumstances, plot: str | None
) -> str:
    """Return the page with other figures between its two markers; pure.

    Args:
        page: in Markdown.
        figures: of one measurement.
        around: where and with what they came about.
        plot: the name of a picture beside the page.

    Raises:
        ValueError: the page has no markers.
    """
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"it has no lines {BEGIN} and {END} for the figures")
    picture = [] if plot is None else [f"![CPU time for each token and request]({plot})", ""]
    lines = [BEGIN, "", _sentence(figures, around), "", *picture, *_table(figures), "", END]
    return before + "\n".join(lines) + after


def _sentence(figures: Sequence[Figures], around: Circumstances) -> str:
    loads = [each.load_average for each in figures]
    peers = ", ".join(f"{name} {version}" for name, version in around.versions.items())
    return (
        f"{around.date}, {around.cores} cores of {around.processor}, Python {around.python}; "
        f"medians of {min(each.runs for each in figures)} runs; "
        f"load average before each series {min(loads):.1f} to {max(loads):.1f}"
        + (f"; {peers}." if peers else ".")
    )


def _table(figures: Sequence[Figures]) -> list[str]:
    alignment = ["---" if title in TEXTS else "---:" for title in TITLES]
    return ["| " + " | ".join(cells) + " |" for cells in (TITLES, alignment, *rows(figures))]


def write_page(
    path: Path, figures: Sequence[Figures], around: Circumstances, plot: Path | None
) -> None:
    """Put figures into a page.

    Raises:
        OSError: it cannot be read or written.
        ValueError: it has no place for them.
    """
    page = path.read_text(encoding="utf-8")
    name = None if plot is None else plot.name
    path.write_text(with_figures(page, figures, around, name), encoding="utf-8")
