"""Reads a call that is one JSON object, with a name and arguments, as it is written.

Accepted are keys in any order, ``parameters`` for ``arguments``, and arguments that are null or a
string of JSON. It is a call from the moment that it names a known function and its arguments begin.
From then on the arguments are passed on as the model writes them, which need not be valid JSON
unless a grammar holds it to that. Before, anything unexpected makes it no call.
"""

from collections.abc import Callable, Collection

import msgspec

from gpu_worker.dialect.json_scan import JsonScan
from gpu_worker.dialect.tools import CallPiece

ARGUMENTS = ("arguments", "parameters")


class JsonCall:
    """Reads one object. Its state is the method that takes the next characters."""

    def __init__(
        self, names: Collection[str], *, exact: bool = False, broken_end: str = ""
    ) -> None:
        """Begin after the opening bracket.

        Args:
            names: of the functions that may be called.
            exact: nothing but its form says that this is a call, so it has to have the form:
                arguments, and no keys of other meaning before them.
            broken_end: ends a call even within a string left open; begins with a line break and
                has no quotes and brackets of JSON.
        """
        self._names = names
        self._exact = exact
        self._broken_end = broken_end
        self.begun = False  # it is a call
        self.failed = False  # it is none, or no JSON after its arguments
        self.broken = False  # the broken end has ended it
        self.done = False  # its closing bracket has been read
        self._step: Callable[[str, int], int] = self._before_key
        self._pieces: list[CallPiece] = []
        self._held = ""  # as much of a broken end as has come
        self._key = ""
        self._name = ""
        self._arguments: str | None = None  # if they come before the name
        self._scan = JsonScan("{")
        self._value: list[str] = []
        self._take: Callable[[str], None] = self._take_key

    @property
    def over(self) -> bool:
        """Nothing that follows belongs to it."""
        return self.done or self.failed or self.broken

    def feed(self, text: str, begin: int) -> int:
        """Take text from a place on; return the place after what has been read."""
        at = begin
        while at < len(text) and not self.over:
            at = self._step(text, at)
        return at

    def take_pieces(self) -> list[CallPiece]:
        """Return the pieces of the call that have come since."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def _before_key(self, text: str, at: int) -> int:
        if text[at] == '"':
            return self._begin_value(text, at, self._take_key)
        return self._after_value(text, at)

    def _before_colon(self, text: str, at: int) -> int:
        if text[at] == ":":
            self._step = self._before_value
        elif not text[at].isspace():
            return self._fail(at)
        return at + 1

    def _before_value(self, text: str, at: int) -> int:
        if text[at].isspace():
            return at + 1
        if self._key in ARGUMENTS and text[at] == "{" and self._name and not self.begun:
            self._begin_call()
            self._scan = JsonScan("{")
            self._step = self._in_arguments
            return at
        if not (self.begun or self._may_begin(text[at])):
            return self._fail(at)
        return self._begin_value(text, at, self._take_value)

    def _may_begin(self, character: str) -> bool:
        """Tell whether a value of a call may begin so."""
        if self._key in ARGUMENTS:
            return character in '{"n'
        return character == '"' or not (self._exact or self._key == "name")

    def _begin_value(self, text: str, at: int, take: Callable[[str], None]) -> int:
        self._scan = JsonScan(text[at])
        self._value = []
        self._take = take
        self._step = self._in_value
        return at

    def _in_value(self, text: str, at: int) -> int:
        end = self._scan.feed(text, at)
        self._value.append(text[at:end])
        if self._scan.done:
            self._take("".join(self._value))
        return end

    def _take_key(self, text: str) -> None:
        self._key = _string(text) or ""
        self._step = self._before_colon
        if self._exact and not self.begun and self._key not in ("type", "name", *ARGUMENTS):
            self.failed = True

    def _take_value(self, text: str) -> None:
        self._step = self._after_value
        if self.begun:
            return
        if self._key == "name":
            self._name = _string(text) or ""
            self.failed = self._name not in self._names
        elif self._key in ARGUMENTS:
            self._arguments = _as_object(text)
            self.failed = self._arguments is None
        elif self._exact:
            self.failed = _string(text) != "function"
        if self._name and self._arguments is not None and not self.failed:
            self._whole_call(self._arguments)

    def _after_value(self, text: str, at: int) -> int:
        character = text[at]
        if character == ",":
            self._step = self._before_key
        elif character == "}":
            if not self.begun:
                if not self._name or self._exact:
                    return self._fail(at)
                self._whole_call(self._arguments or "{}")
            self.done = True
        elif not character.isspace():
            return self._fail(at)
        return at + 1

    def _in_arguments(self, text: str, at: int) -> int:
        end = self._scan.feed(text, at, break_lines=bool(self._broken_end))
        if end > at:
            self._pieces.append(CallPiece(arguments=text[at:end], complete=self._scan.done))
        if self._scan.done:
            self._step = self._after_value
        elif end < len(text):
            self._step = self._at_line_break
        return end

    def _at_line_break(self, text: str, at: int) -> int:
        """In arguments: hold back what may be the end of a call whose JSON is broken."""
        if text[at] == self._broken_end[len(self._held)]:
            self._held += text[at]
            if self._held == self._broken_end:
                self._held = ""
                self._pieces.append(CallPiece(complete=True))
                self.broken = True
            return at + 1
        # No quote and no bracket of JSON is among it, so that the scan need not see it.
        self._pieces.append(CallPiece(arguments=self._held))
        self._held = ""
        self._step = self._in_arguments
        return at

    def _begin_call(self) -> None:
        self.begun = True
        self._pieces.append(CallPiece(name=self._name))

    def _whole_call(self, arguments: str) -> None:
        self._begin_call()
        self._pieces.append(CallPiece(arguments=arguments, complete=True))

    def _fail(self, at: int) -> int:
        self.failed = True
        return at


def _string(text: str) -> str | None:
    if not text.startswith('"'):
        return None
    try:
        # Strict: Python's own reader makes of half a character a text that nobody can be sent.
        return msgspec.json.decode(text, type=str)
    except ValueError:
        return None


def _as_object(text: str) -> str | None:
    """Return an object's text as it is written; models also write it as a string, or null."""
    if text == "null":
        return "{}"
    inner = _string(text) if text.startswith('"') else text
    if inner is None or not inner.lstrip().startswith("{"):
        return None
    return inner
