"""How an answer is shown while it comes."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TextIO

from fastrun.cli.chat_api import Piece
from fastrun.service.terminal import printable

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_LAYOUT = frozenset("\n\t")


@dataclass(slots=True)
class Answer:
    """What has come so far."""

    content: str = ""
    reasoning: str = ""
    finish: str = ""
    usage: dict[str, Any] = field(default_factory=dict)

    def add(self, piece: Piece) -> None:
        """Take what has come."""
        self.content += piece.content
        self.reasoning += piece.reasoning
        self.finish = piece.finish or self.finish
        self.usage = dict(piece.usage or self.usage)

    def fields(self) -> dict[str, Any]:
        """For programs."""
        return {
            "content": self.content,
            "reasoning": self.reasoning or None,
            "finish_reason": self.finish or None,
            "usage": self.usage or None,
        }


class Screen:
    """Shows one answer; its thoughts only at a terminal, dimmed.

    Args:
        stream: where; None: nowhere.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.answer = Answer()
        self._stream = stream
        self._is_terminal = stream is not None and stream.isatty()
        self._thinks = False
        self._at_start = True

    def show(self, pieces: Iterable[Piece]) -> Answer:
        """Show all of it; returns it once it has ended."""
        for piece in pieces:
            self.answer.add(piece)
            if piece.reasoning and self._is_terminal:
                self._think(thinks=True)
                self._write(piece.reasoning)
            if piece.content:
                self._think(thinks=False)
                self._write(piece.content)
        self._end()
        if self.answer.finish == "length" and self._is_terminal:
            print("(cut off: --max-tokens or the model's window is reached)", file=sys.stderr)
        return self.answer

    def stop(self) -> None:
        """End what is shown, as it is."""
        self._end()

    def _think(self, *, thinks: bool) -> None:
        if thinks != self._thinks:
            self._thinks = thinks
            self._raw(_DIM if thinks else f"{_PLAIN}\n\n")

    def _end(self) -> None:
        if self._thinks:
            self._thinks = False
            self._raw(_PLAIN)
        if not self._at_start:
            self._raw("\n")

    def _write(self, text: str) -> None:
        # A model may say anything, and a terminal would do it.
        shown = text
        if self._is_terminal and not text.isprintable():
            shown = "".join(each if each in _LAYOUT else printable(each) for each in text)
        self._at_start = False
        self._raw(shown)

    def _raw(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()
