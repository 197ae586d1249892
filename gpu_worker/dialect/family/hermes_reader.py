"""Reads ``<tool_call>`` + JSON with a name and arguments + ``</tool_call>`` as it is written.

Accepted besides: several calls as a list in one tag, further keys, no arguments at all, a missing
end tag, a bracket too many. What turns out to be no call is ordinary text.
"""

from collections.abc import Callable, Collection

from gpu_worker.dialect.json_call import JsonCall
from gpu_worker.dialect.tools import CallPiece

OPENING, CLOSING = "<tool_call>", "</tool_call>"
# No JSON has a raw line break before this, so it ends a call even within a string left open.
BROKEN_END = "\n" + CLOSING


class HermesReader:
    """Reads one tag. Its state is the method that takes the next characters."""

    def __init__(self, names: Collection[str]) -> None:
        """Begin after the opening tag.

        Args:
            names: of the functions that may be called.
        """
        self._names = names
        self.over = False
        self._step: Callable[[str, int], int] = self._before_object
        self._pieces: list[CallPiece] = []
        self._no_call = [OPENING]  # text, unless a call begins
        self._begun = False
        self._in_list = False
        self._held = ""  # as much of an end tag as has come
        self._call = self._next_call()

    @property
    def text(self) -> str:
        """What has been read, marker included, as far as it is part of no call."""
        return "".join(self._no_call)

    def feed(self, text: str) -> tuple[list[CallPiece], str]:
        """Take more text; return pieces of calls and, once over, the text that follows."""
        at = 0
        while at < len(text) and not self.over:
            begin, at = at, self._step(text, at)
            if not self._begun:
                self._no_call.append(text[begin:at])
        pieces, self._pieces = self._pieces, []
        return pieces, self._held + text[at:] if self.over else ""

    def end(self) -> list[CallPiece]:
        """Take the end of the text; JSON that has no end stays as it is."""
        return []

    def _before_object(self, text: str, at: int) -> int:
        character = text[at]
        if character == "{":
            self._begun = False
            self._call = self._next_call()
            self._step = self._in_object
        elif character == "[" and not self._in_list:
            self._in_list = True
        elif character == "]" and self._in_list:
            self._step = self._after_objects
        elif not (character.isspace() or (character == "," and self._in_list)):
            self.over = True
            return at
        return at + 1

    def _in_object(self, text: str, at: int) -> int:
        end = self._call.feed(text, at)
        self._pieces += self._call.take_pieces()
        if self._call.begun:
            self._begun = True
            self._no_call = []
        if self._call.done:
            self._step = self._before_object if self._in_list else self._after_objects
        else:
            self.over = self._call.over
        return end

    def _after_objects(self, text: str, at: int) -> int:
        """Up to the end tag; a text without one begins here."""
        character = text[at]
        if character == CLOSING[len(self._held)]:
            self._held += character
            if self._held == CLOSING:
                self._held = ""
                self._no_call = []
                self._begun = self.over = True
        elif self._held or not (character.isspace() or character in "]}"):
            self.over = True
            return at
        return at + 1

    def _next_call(self) -> JsonCall:
        return JsonCall(self._names, broken_end=BROKEN_END)
