"""Words as Markdown that shows them as they are."""

import re
from collections.abc import Iterable, Sequence

# What would begin a tag, a link, emphasis or another cell. Backticks stay: they mean code.
_SPECIAL = re.compile(r"([<\[\]*|\\])")
_CODE = re.compile(r"(`[^`]*`)")


def prose(text: str) -> str:
    """Escape a text, all on one line, except for what stands between backticks."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(
        part.replace("|", r"\|") if index % 2 else _SPECIAL.sub(r"\\\1", part)
        for index, part in enumerate(parts)
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Make a table of cells that are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def code(language: str, text: str) -> str:
    """Make a block of code."""
    return f"```{language}\n{text.rstrip()}\n```\n"
