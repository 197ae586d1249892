"""What a generation may say: one description, which every engine compiles for its own library.

A dialect builds it from these few parts; an engine that cannot honour one refuses the request.
"""

import msgspec


class Literal(msgspec.Struct, frozen=True):
    """Exactly this text."""

    text: str


class Json(msgspec.Struct, frozen=True):
    """One JSON value that a schema allows."""

    schema: str  # JSON Schema, Draft 2020-12, as JSON text


class Free(msgspec.Struct, frozen=True):
    """Any text up to and including the first ``until``."""

    until: str
    # Of the text before that:
    without: tuple[str, ...] = ()  # what it may not contain
    not_first: str = ""  # characters that it may not begin with, whitespace aside
    least: int = 0  # characters
    most: int | None = None  # characters; None: without bound


class Sequence(msgspec.Struct, frozen=True):
    """One after the other."""

    parts: tuple["Grammar", ...]


class Choice(msgspec.Struct, frozen=True):
    """One of these."""

    options: tuple["Grammar", ...]


class Repeat(msgspec.Struct, frozen=True):
    """One part several times."""

    part: "Grammar"
    least: int
    most: int | None  # None: without bound


Grammar = Literal | Json | Free | Sequence | Choice | Repeat


class GrammarError(Exception):
    """The grammar cannot be compiled; the message names what the library cannot do."""
