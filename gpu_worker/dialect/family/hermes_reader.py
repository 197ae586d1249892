"""Reads ``<tool_call>`` + JSON with a name and arguments + ``</tool_call>`` as it is written.

Accepted besides: several calls as a list in one tag, ``parameters`` for ``arguments``, further keys
in any order, arguments as a string of JSON, a missing end tag, a bracket too many.

What is in the tag is a call from the moment that it names a known function and its arguments begin.
From then on the arguments are passed on as the model writes them, which need not be valid JSON
unless a grammar holds it to that. Before, anything unexpected makes all of it ordinary text.
"""

import json
from collections.abc import Callable, Collection

from gpu_worker.dialect.json_scan import JsonScan
from gpu_worker.dialect.tools import CallPiece

OPENING, CLOSING = "<tool_call>", "</tool_call>"
# No JSON has a raw line break before this, so it ends a call even within a string left open.
BROKEN_END = "\n" + CLOSING
ARGUMENTS = ("arguments", "parameters")


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
        self._key = ""
        self._name = ""
        self._arguments: str | None = None  # if they come before the name
        self._scan = JsonScan("{")
        self._value: list[str] = []
        self._take: Callable[[str], None] = self._take_key

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

    def _before_object(self, text: str, at: int) -> int:
        character = text[at]
        if character == "{":
            self._name, self._arguments, self._begun = "", None, False
            self._step = self._before_key
        elif character == "[" and not self._in_list:
            self._in_list = True
        elif character == "]" and self._in_list:
            self._step = self._after_objects
        elif not (character.isspace() or (character == "," and self._in_list)):
            return self._fail(at)
        return at + 1

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
        if self._key in ARGUMENTS and text[at] == "{" and self._name and not self._begun:
            self._begin_call()
            self._scan = JsonScan("{")
            self._step = self._in_arguments
            return at
        return self._begin_value(text, at, self._take_value)

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

    def _take_value(self, text: str) -> None:
        self._step = self._after_value
        if self._begun:
            return
        if self._key == "name":
            self._name = _string(text) or ""
            if self._name not in self._names:
                self.over = True
        elif self._key in ARGUMENTS:
            self._arguments = _as_object(text)
            if self._arguments is None:
                self.over = True
        if self._name and self._arguments is not None and not self.over:
            self._whole_call(self._arguments)

    def _after_value(self, text: str, at: int) -> int:
        character = text[at]
        if character == ",":
            self._step = self._before_key
        elif character == "}":
            if not self._begun:
                if not self._name:
                    return self._fail(at)
                self._whole_call(self._arguments or "{}")
            self._step = self._before_object if self._in_list else self._after_objects
        elif not character.isspace():
            return self._fail(at)
        return at + 1

    def _in_arguments(self, text: str, at: int) -> int:
        end = self._scan.feed(text, at, break_lines=True)
        if end > at:
            self._pieces.append(CallPiece(arguments=text[at:end], complete=self._scan.done))
        if self._scan.done:
            self._step = self._after_value
        elif end < len(text):
            self._step = self._at_line_break
        return end

    def _at_line_break(self, text: str, at: int) -> int:
        """In arguments: hold back what may be the end of a call whose JSON is broken."""
        if text[at] == BROKEN_END[len(self._held)]:
            self._held += text[at]
            if self._held == BROKEN_END:
                self._held = ""
                self._pieces.append(CallPiece(complete=True))
                self.over = True
            return at + 1
        # No quote and no bracket of JSON is among it, so that the scan need not see it.
        self._pieces.append(CallPiece(arguments=self._held))
        self._held = ""
        self._step = self._in_arguments
        return at

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

    def _begin_call(self) -> None:
        self._begun = True
        self._no_call = []
        self._pieces.append(CallPiece(name=self._name))

    def _whole_call(self, arguments: str) -> None:
        self._begin_call()
        self._pieces.append(CallPiece(arguments=arguments, complete=True))

    def _fail(self, at: int) -> int:
        self.over = True
        return at


def _string(text: str) -> str | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _as_object(text: str) -> str | None:
    """Return an object's text as it is written; models also write it as a string, or null."""
    if text == "null":
        return "{}"
    inner = _string(text) if text.startswith('"') else text
    if inner is None or not inner.lstrip().startswith("{"):
        return None
    return inner
