"""Reads ``<|tool_call>call:NAME{key:value,…}<tool_call|>``: markers and name.

Accepted besides: no ``call``, a namespace before the name, ``call:NAME(key=value)``, no end marker.
What names no known function is no call, and is shown without the markers.
"""

import re
from collections.abc import Callable, Sequence

from gpu_worker.dialect.argument_types import ArgumentType
from gpu_worker.dialect.family.gemma_arguments import ArgumentsReader
from gpu_worker.dialect.tools import CallPiece, Tool

OPENING, CLOSING, DELIMITER = "<|tool_call>", "<tool_call|>", '<|"|>'
MARKERS = (OPENING, CLOSING, DELIMITER)
BARE_OPENING = "call:"  # of a call whose marker is missing

_MARKER = re.compile("|".join(map(re.escape, MARKERS)))
_NO_NAME = frozenset("<>)}[],;\"'`")
_LONGEST_NAME = 256


class GemmaReader:
    """Reads one call. Its state is the method that takes the next characters."""

    def __init__(self, opening: str, tools: Sequence[Tool]) -> None:
        """Begin after an opening; the markers that open no call show nothing, and that is all.

        Args:
            opening: the marker, or the word that calls begin with without one.
            tools: that may be called.
        """
        self._tools = {tool.name: tool for tool in tools}
        is_bare = opening == BARE_OPENING
        self.over = opening != OPENING and not is_bare
        self._step: Callable[[str, int], int] = self._in_name if is_bare else self._before_name
        self._shown = [BARE_OPENING] if is_bare else []  # unless a call begins
        self._pieces: list[CallPiece] = []
        self._held = ""  # what may be the start of a marker
        self._word = ""
        self._arguments: ArgumentsReader | None = None

    @property
    def text(self) -> str:
        """What has been read as far as it is part of no call."""
        return "".join(self._shown)

    def feed(self, text: str) -> tuple[list[CallPiece], str]:
        """Take more text; return pieces of calls and, once over, the text that follows."""
        text, at = self._held + text, 0
        while at < len(text) and not self.over:
            marker = _MARKER.search(text, at)
            if marker is not None and marker.start() == at:
                at = marker.end() if self._take_marker(marker[0]) else at
                continue
            end = marker.start() if marker else _clear(text, at)
            if end == at:
                break
            at = self._take_text(text[:end], at)
        self._held = "" if self.over else text[at:]
        return self._taken(), text[at:] if self.over else ""

    def end(self) -> list[CallPiece]:
        """Take the end of the text, where the model chose it; it ends a call as well."""
        if not self.over:
            at = self._take_text(self._held, 0)
            self._shown.append(self._held[at:])
            self._end_arguments()
        return self._taken()

    def _take_text(self, text: str, at: int) -> int:
        while at < len(text) and not self.over:
            begin, at = at, self._step(text, at)
            if self._arguments is None:
                self._shown.append(text[begin:at])
        return at

    def _take_marker(self, marker: str) -> bool:
        """Take a marker; False if it belongs to what follows."""
        arguments = self._arguments
        if arguments is not None and marker == DELIMITER:
            arguments.delimiter()
            return True
        if arguments is not None and marker == OPENING and arguments.in_text:
            arguments.feed(marker, 0)
            return True
        self._end_arguments()
        self.over = True
        return arguments is not None and marker == CLOSING

    def _before_name(self, text: str, at: int) -> int:
        word = (self._word + text[at]).lstrip()
        if word in (BARE_OPENING, ":"):
            word = ""
            self._step = self._in_name
        elif not BARE_OPENING.startswith(word):
            self.over = True
            return at
        self._word = word
        return at + 1

    def _in_name(self, text: str, at: int) -> int:
        character, word = text[at], self._word
        if character in "{(":
            return self._after_name(text, at)
        ended = word[-1:].isspace() and not character.isspace()
        if ended or character in _NO_NAME or len(word) == _LONGEST_NAME:
            self.over = True
            return at
        self._word = (word + character).lstrip()
        return at + 1

    def _after_name(self, text: str, at: int) -> int:
        name = self._word.rstrip()
        tool = self._tools.get(name) or self._tools.get(name.rpartition(":")[2])
        if tool is None:
            self.over = True
            return at
        self._shown = []
        self._pieces.append(CallPiece(name=tool.name))
        self._arguments = ArgumentsReader(ArgumentType.of(tool), is_python=text[at] == "(")
        self._step = self._in_arguments
        return at + 1

    def _in_arguments(self, text: str, at: int) -> int:
        arguments = self._arguments
        assert arguments is not None
        at = arguments.feed(text, at)
        if arguments.complete:
            self._end_arguments()
        return at

    def _end_arguments(self) -> None:
        arguments = self._arguments
        if arguments is not None and self._step == self._in_arguments:
            self._step = self._after_arguments
            self._pieces.append(CallPiece(arguments=arguments.end(), complete=True))

    def _after_arguments(self, text: str, at: int) -> int:
        if text[at].isspace() or text[at] in "}])":
            return at + 1
        self.over = True
        return at

    def _taken(self) -> list[CallPiece]:
        if self._arguments is not None and (written := self._arguments.take()):
            self._pieces.append(CallPiece(arguments=written))
        pieces, self._pieces = self._pieces, []
        return pieces


def _clear(text: str, begin: int) -> int:
    """Return where the start of a marker may stand at the end of a text; else its end."""
    at = text.rfind("<", begin)
    is_begun = at >= 0 and any(marker.startswith(text[at:]) for marker in MARKERS)
    return at if is_begun else len(text)
