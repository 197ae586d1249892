"""Reads calls whose arguments stand one by one between tags, texts as they are.

``<tool_call>``, ``<function=NAME>``, then for each argument ``<parameter=KEY>``, its value and
``</parameter>``, then ``</function>`` and ``</tool_call>``, each on lines of its own.

It is a call from the moment that a known function is named and an argument or an end tag follows;
before, anything else makes it ordinary text. Models leave tags out: any but the function's may be
missing, as long as the next one comes or the text ends. One line break on either side of a value is
not part of it. An end tag within a value is text, unless something follows that comes after values.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gpu_worker.dialect.argument_types import ArgumentType
from gpu_worker.dialect.arguments_writer import ArgumentsWriter
from gpu_worker.dialect.tools import CallPiece, Tool

CALL, CALL_END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"

_KEY_END = re.compile(r"[>\n]")
_GAP = re.compile(r"\s{0,256}")  # more has nothing to do with tags, and need not be waited for
_AFTER_VALUE = (PARAMETER, FUNCTION_END, CALL_END, CALL, FUNCTION)


class QwenXmlReader:
    """Reads one call. Its state is the method that looks at what has come and is not settled."""

    def __init__(self, opening: str, tools: Sequence[Tool]) -> None:
        """Begin after an opening.

        Args:
            opening: ``CALL`` or ``FUNCTION``.
            tools: that may be called.
        """
        self._opening = opening
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self.over = False
        self._step: Callable[[], bool] = self._before_call
        self._held = ""  # what is not settled
        self._ended = False  # nothing follows what is held
        self._begun = False
        self._complete = False
        self._key: list[str] = []
        self._at_value_start = True
        self._writer = ArgumentsWriter(ArgumentType(None, None))
        self._pieces: list[CallPiece] = []

    @property
    def text(self) -> str:
        """What has been read, the opening included, as far as it is part of no call."""
        if self._begun:
            return ""
        return self._opening if self.over else self._opening + self._held

    def feed(self, text: str) -> tuple[list[CallPiece], str]:
        """Take more text; return pieces of calls and, once over, the text that follows."""
        self._held += text
        while not self.over and self._step():
            pass
        pieces, self._pieces = self._pieces, []
        return pieces, self._held if self.over else ""

    def end(self) -> list[CallPiece]:
        """Take the end of the text; it stands for the end tags that are missing."""
        self._ended = True
        pieces, _ = self.feed("")
        if self._begun and not self._complete:
            pieces.append(CallPiece(arguments=self._writer.close(), complete=True))
        return pieces

    # Each step returns whether it has settled something, so that the next one can look.

    def _before_call(self) -> bool:
        text = self._held
        if self._opening == CALL:
            text = _after_gap(text)
            if not text.startswith(FUNCTION):
                self.over = not FUNCTION.startswith(text)
                return False
            text = text[len(FUNCTION) :]
        name, closed, after = text.partition(">")
        if not closed:
            self.over = not any(known.startswith(name) for known in self._tools)
            return False
        after = _after_gap(after)
        follows = after.startswith(_AFTER_VALUE) or (self._ended and not after)
        if name not in self._tools or not follows:
            self.over = name not in self._tools or not _may_become(after, _AFTER_VALUE)
            return False
        self._begun = True
        self._pieces.append(CallPiece(name=name))
        self._writer = ArgumentsWriter(ArgumentType.of(self._tools[name]))
        self._held, self._step = after, self._after_value
        return True

    def _after_value(self) -> bool:
        text = self._held.lstrip()
        if text.startswith(PARAMETER):
            self._held, self._step = text[len(PARAMETER) :], self._in_key
            return True
        self._pieces.append(CallPiece(arguments=self._writer.close(), complete=True))
        self._complete = True
        self._held = text.removeprefix(FUNCTION_END)
        self._step = self._after_function
        return True

    def _in_key(self) -> bool:
        end = _KEY_END.search(self._held)
        self._key.append(self._held[: end.start()] if end else self._held)
        if end is None:
            self._held = ""
            return False
        self._write(self._writer.begin("".join(self._key)))
        self._key = []
        self._held = self._held[end.start() :].removeprefix(">")
        self._step = self._before_value
        return True

    def _before_value(self) -> bool:
        if not (self._held or self._ended):
            return False
        self._held = self._held.removeprefix("\n")
        self._at_value_start = True
        self._step = self._in_value
        return True

    def _in_value(self) -> bool:
        text = self._held
        value, rest = _split(text, at_start=self._at_value_start, ended=self._ended)
        self._at_value_start = self._at_value_start and not value
        self._write(self._writer.add(value))
        if rest is None:
            self._held = text[len(value) :]
            return False
        self._write(self._writer.end())
        self._held, self._step = rest, self._after_value
        return True

    def _after_function(self) -> bool:
        text = self._held = self._held.lstrip()
        if not CALL_END.startswith(text[: len(CALL_END)]):
            self.over = True
        elif text.startswith(CALL_END):
            self.over = True
            self._held = text[len(CALL_END) :]
        return False

    def _write(self, arguments: str) -> None:
        if arguments:
            self._pieces.append(CallPiece(arguments=arguments))


class _EndTag(NamedTuple):
    """What may end a value."""

    text: str
    followers: tuple[str, ...] = ("",)  # one has to come, after whitespace
    needs_line: bool = True  # it ends a value only at the start of a line

    def ends(self, text: str, *, ended: bool) -> bool | None:
        """Tell whether a value ends before a text; None if what will follow decides that."""
        if not text.startswith(self.text):
            return None if not ended and self.text.startswith(text) else False
        after = _after_gap(text[len(self.text) :])
        if after.startswith(self.followers):
            return True
        return (ended or None) if _may_become(after, self.followers) else False


_END_TAGS = (
    _EndTag(PARAMETER_END, _AFTER_VALUE, needs_line=False),
    _EndTag(FUNCTION_END, (CALL_END,)),
    _EndTag(PARAMETER),
    _EndTag(CALL_END),
)


def _split(text: str, *, at_start: bool, ended: bool) -> tuple[str, str | None]:
    """Return what surely belongs to a value, and what follows it; None if it may go on.

    Args:
        text: what has come of the value.
        at_start: nothing of it came before that.
        ended: nothing will follow the text.
    """
    at = text.find("<")
    while at >= 0:
        line_begins = text[at - 1] == "\n" if at else at_start
        for tag in _END_TAGS:
            if tag.needs_line and not line_begins:
                continue
            ends = tag.ends(text[at:], ended=ended)
            if ends is not False:
                rest = text[at:].removeprefix(PARAMETER_END) if ends else None
                return text[:at].removesuffix("\n"), rest
        at = text.find("<", at + 1)
    return text.removesuffix("\n"), "" if ended else None


def _after_gap(text: str) -> str:
    """Return what follows the whitespace between two tags."""
    gap = _GAP.match(text)
    return text[gap.end() :] if gap else text


def _may_become(text: str, tags: Sequence[str]) -> bool:
    return any(tag.startswith(text) for tag in tags)
