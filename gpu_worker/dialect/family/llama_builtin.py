"""Reads a call as Llama writes those of its built-in tools: ``brave_search.call(query="…")``.

The models' templates print texts between quotes without escaping anything, so that a quote ends
a text only in front of the next key or of the closing bracket. Any other value has its type from
the tool's schema.
"""

import re
from collections.abc import Callable, Sequence

from gpu_worker.dialect.argument_types import ANY, ArgumentType, quoted
from gpu_worker.dialect.json_scan import JsonScan
from gpu_worker.dialect.tools import CallPiece, Tool

# Bounded, so that what goes on for longer is no key, and need not be waited for.
_KEY = re.compile(r"\s{0,64}\w{0,256}\s{0,64}")
_IN_TEXT = re.compile(r"[\"'\\]")
_AFTER_TEXT = re.compile(rf"\s{{0,64}}(,{_KEY.pattern})?")
_AFTER_SCALAR = re.compile(r"[,)]")


class BuiltinCall:
    """Reads one call. Its state is the method that takes the next characters."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        """Begin before the name.

        Args:
            tools: that may be called.
        """
        self._tools = {f"{tool.name}.call(": tool for tool in tools}
        self.begun = False  # it is a call
        self.failed = False  # it is none, or goes on as no call does
        self.done = False  # its closing bracket has been read
        self._step: Callable[[str, int], int] = self._in_name
        self._pieces: list[CallPiece] = []
        self._tool = Tool("")
        self._type = ArgumentType(None, None)
        self._quote = ""
        self._scan = JsonScan("[")
        self._held = ""  # a name, a key, or what may be the end of a text
        self._value: list[str] = []  # of an argument, as far as it is not passed on yet

    @property
    def over(self) -> bool:
        """Nothing that follows belongs to it."""
        return self.done or self.failed

    def feed(self, text: str, begin: int) -> int:
        """Take text from a place on; return the place after what has been read."""
        at = begin
        while at < len(text) and not self.over:
            at = self._step(text, at)
        return at

    def end(self) -> None:
        """Take the end of the text: only the closing bracket may be missing."""
        if self.begun and self._step in (self._in_key, self._after_quote, self._in_scalar):
            self.feed(")", 0)

    def take_pieces(self) -> list[CallPiece]:
        """Return the pieces of the call that have come since."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def _in_name(self, text: str, at: int) -> int:
        self._held += text[at]
        if tool := self._tools.get(self._held):
            self._tool = tool
            self._held = ""
            self._step = self._in_key
        elif not any(opening.startswith(self._held) for opening in self._tools):
            self.failed = True
            return at
        return at + 1

    def _in_key(self, text: str, at: int) -> int:
        character = text[at]
        if character == "=" and self._held.strip():
            self._begin_value(self._held.strip())
        elif character == ")" and not self._held.strip():
            self._end()
        elif _KEY.fullmatch(self._held + character):
            self._held += character
        else:
            if self.begun:
                self._end()
            self.failed = True
            return at
        return at + 1

    def _begin_value(self, key: str) -> None:
        self._type = ArgumentType.of(self._tool).at(key)
        before = ", " if self.begun else "{"
        self._begin()
        self._pieces.append(CallPiece(arguments=f"{before}{quoted(key)}: "))
        self._held = ""
        self._step = self._before_value

    def _before_value(self, text: str, at: int) -> int:
        character = text[at]
        if character.isspace():
            return at + 1
        if character in ('"', "'"):
            self._quote = character
            self._step = self._in_text
            if self._is_passed_on:
                self._pieces.append(CallPiece(arguments='"'))
            return at + 1
        self._scan = JsonScan(character)
        self._step = self._in_brackets if character in "{[" else self._in_scalar
        return at

    @property
    def _is_passed_on(self) -> bool:
        """What stands between quotes is a text, which need not be seen as a whole."""
        return self._type.is_text or self._type.types == ANY

    def _in_text(self, text: str, at: int) -> int:
        found = _IN_TEXT.search(text, at)
        end = found.start() if found else len(text)
        self._add(text[at:end])
        if found is None:
            return end
        if found[0] == "\\":
            self._held = "\\"
            self._step = self._after_backslash
        elif found[0] == self._quote:
            self._held = self._quote
            self._step = self._after_quote
        else:
            self._add(found[0])
        return end + 1

    def _after_backslash(self, text: str, at: int) -> int:
        if text[at] == self._quote:
            self._held += self._quote
            self._step = self._after_quote
            return at + 1
        self._add(self._held)
        self._step = self._in_text
        return at

    def _after_quote(self, text: str, at: int) -> int:
        """Hold back what may be the end of the text, up to the next key or the closing bracket."""
        character = text[at]
        backslash, _, after = self._held.rpartition(self._quote)
        if character == ")" and not after.strip(", "):
            self._end_text(backslash)
            self._end()
        elif character == "=" and after.strip(", "):
            self._end_text(backslash)
            self._begin_value(after.strip()[1:].strip())
        elif _AFTER_TEXT.fullmatch(after + character):
            self._held += character
        else:
            self._add(self._held.removeprefix("\\"))
            self._step = self._in_text
            return at
        return at + 1

    def _end_text(self, backslash: str) -> None:
        self._add(backslash)
        if self._is_passed_on:
            self._pieces.append(CallPiece(arguments='"'))
        else:
            self._give("".join(self._value))

    def _add(self, text: str) -> None:
        """Take more of a text between quotes."""
        self._held = ""
        if not text:
            return
        if self._is_passed_on:
            self._pieces.append(CallPiece(arguments=quoted(text)[1:-1]))
        else:
            self._value.append(text)

    def _in_brackets(self, text: str, at: int) -> int:
        end = self._scan.feed(text, at)
        self._value.append(text[at:end])
        if self._scan.done:
            self._step = self._in_scalar
        return end

    def _in_scalar(self, text: str, at: int) -> int:
        found = _AFTER_SCALAR.search(text, at)
        end = found.start() if found else len(text)
        self._value.append(text[at:end])
        if found is None:
            return end
        self._give("".join(self._value))
        return self._after_value(text, end)

    def _give(self, text: str) -> None:
        self._pieces.append(CallPiece(arguments=self._type.as_json(text)))
        self._value = []

    def _after_value(self, text: str, at: int) -> int:
        self._held = ""
        if text[at] == ")":
            self._end()
        else:
            self._step = self._in_key
        return at + 1

    def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            self._pieces.append(CallPiece(name=self._tool.name))

    def _end(self) -> None:
        end = "}" if self.begun else "{}"
        self._begin()
        self._pieces.append(CallPiece(arguments=end, complete=True))
        self.done = True
