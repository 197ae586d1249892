"""What a family's way of calling tools has to offer."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from gpu_worker.dialect.tools import CallPiece, Tool
from gpu_worker.engine.grammar import Grammar


class CallReader(Protocol):
    """Reads what follows one opening marker, however it is cut."""

    @property
    def over(self) -> bool:
        """What belongs together has been read, or has turned out to be no call."""

    @property
    def text(self) -> str:
        """What has been read, marker included, as far as it is part of no call."""

    def feed(self, text: str) -> tuple[list[CallPiece], str]:
        """Take more text; return pieces of calls and, once over, the text that follows."""


class CallFormat(Protocol):
    """How calls, tools and results are written."""

    @property
    def opening(self) -> str:
        """The marker before a call."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All its markers: texts that have to be seen, even if they are special tokens."""

    def reader(self, names: Collection[str]) -> CallReader:
        """Return what reads after an opening marker; other names than these are no calls."""

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> Grammar:
        """Allow one call of any of these tools, or several, and nothing else."""

    def in_words(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]
    ) -> list[dict[str, Any]]:
        """Write tools, calls and results into the texts, for a template that knows none."""
