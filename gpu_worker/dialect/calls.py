"""What a family's way of calling tools has to offer."""

from collections.abc import Sequence
from typing import Protocol

from gpu_worker.dialect.tools import CallPiece, Tool
from gpu_worker.engine.grammar import Grammar


class CallReader(Protocol):
    """Reads what follows one opening marker, however it is cut."""

    @property
    def over(self) -> bool:
        """What belongs together has been read, or has turned out to be no call."""

    @property
    def text(self) -> str:
        """What has been read as far as it is part of no call, and is to be shown.

        With the marker, unless that is a control token, which nobody wrote as a text.
        """

    def feed(self, text: str) -> tuple[list[CallPiece], str]:
        """Take more text; return pieces of calls and, once over, the text that follows."""

    def end(self) -> list[CallPiece]:
        """Take the end of the text, where the model chose it; return what that makes of a call."""


class CallFormat(Protocol):
    """How calls are written."""

    @property
    def openings(self) -> tuple[str, ...]:
        """The markers before a call, wherever they stand."""

    @property
    def bare_opening(self) -> str:
        """What begins a call without a marker, where no content stands yet; empty for nothing."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All its markers: texts that have to be seen, even if they are special tokens."""

    @property
    def are_control_tokens(self) -> bool:
        """No text spells the openings: they are read, and never shown, also without any tools."""

    def reader(self, opening: str, tools: Sequence[Tool]) -> CallReader:
        """Return what reads after an opening; calls of other tools than these are no calls."""

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> Grammar:
        """Allow one call of any of these tools, or several, and nothing else."""
