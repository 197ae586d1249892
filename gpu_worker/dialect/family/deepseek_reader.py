"""Reads a call of DeepSeek V3, R1 and V3.1: a name and JSON between markers.

V3 and R1 write ``function``, a separator, the name and, on lines of its own, a code fence with the
arguments; V3.1 writes the name, the separator and the arguments. Both are read, and what is between
them: a name without a line break, a fence without ``json`` or none, arguments that are left out.

It is a call from the moment that it names a known function and its arguments begin. From then on
they are passed on as the model writes them, up to where their JSON ends or a marker comes, which no
JSON contains.
"""

import re
from collections.abc import Callable, Collection

from gpu_worker.dialect.json_scan import JsonScan
from gpu_worker.dialect.parser import begun
from gpu_worker.dialect.tools import CallPiece

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
MARKERS = (CALLS, CALL, SEPARATOR, CALL_END, CALLS_END)
FENCE, LANGUAGE = "```", "json"

# Bounded, so that what goes on for longer is no call, and need not be waited for.
_WORD = re.compile(r"\s{0,256}([^\s<{`]{0,256})\s{0,256}")
_AFTER_FENCE = re.compile(rf"{FENCE}(?:{LANGUAGE})?\s{{0,256}}")
_ENDS = (*MARKERS, f"\n{FENCE}{CALL_END}")  # of JSON that is broken
_AFTER_JSON = re.compile(r"[\s}\]`]*")  # the fence, and a bracket too many
_AFTER_CALL = re.compile(r"\s*")


class DeepSeekReader:
    """Reads one call. Its state is the method that takes what has come and is not settled."""

    def __init__(self, opening: str, names: Collection[str]) -> None:
        """Begin after a marker.

        Args:
            opening: all but ``CALL`` show nothing by themselves.
            names: of the functions that may be called.
        """
        self.over = opening != CALL
        self._names = names
        self._held = ""  # what has come and is not settled
        self._begun = False
        self._step: Callable[[], bool] = self._before_separator
        self._pieces: list[CallPiece] = []
        self._name = ""
        self._scan = JsonScan("{")

    @property
    def text(self) -> str:
        """What has been read as far as it is part of no call, without markers."""
        return "" if self._begun else self._held.replace(SEPARATOR, "")

    def feed(self, text: str) -> tuple[list[CallPiece], str]:
        """Take more text; return pieces of calls and, once over, the text that follows.

        What turns out to be no call follows as a whole.
        """
        self._held += text
        while not self.over and self._step():
            pass
        pieces, self._pieces = self._pieces, []
        rest = ""
        if self.over:
            rest, self._held = self._held, ""
        return pieces, rest

    def end(self) -> list[CallPiece]:
        """Take the end of the text; JSON that has no end stays as it is."""
        if self._step == self._in_arguments:
            self._pieces.append(CallPiece(arguments=self._held, complete=True))
        return self._pieces

    def _before_separator(self) -> bool:
        """Read what V3 calls the type, and V3.1 the name."""
        word = _word(self._held)
        rest = self._held[word.end() :]
        if not rest.startswith(SEPARATOR):
            return self._fail_unless(viable=SEPARATOR.startswith(rest))
        self._name = word[1]
        self._step = self._before_arguments
        return True

    def _before_arguments(self) -> bool:
        """Read what else stands before the arguments: in V3 the name and a fence."""
        _, _, text = self._held.partition(SEPARATOR)
        word = _word(text)
        rest = text[word.end() :]
        name = word[1] or self._name
        if rest and name not in self._names:
            return self._fail_unless(viable=False)
        if rest.startswith(FENCE):
            if LANGUAGE.startswith(rest.removeprefix(FENCE)):
                return False
            rest = _AFTER_FENCE.sub("", rest, 1)
        if rest.startswith("{"):
            self._begin(name, rest)
            self._step = self._in_arguments
        elif rest.startswith(CALL_END):
            self._begin(name, rest)
            self._pieces.append(CallPiece(arguments="{}", complete=True))
            self._step = self._after_arguments
        else:
            viable = FENCE.startswith(rest) or CALL_END.startswith(rest)
            return self._fail_unless(viable=viable)
        return True

    def _begin(self, name: str, rest: str) -> None:
        self._begun = True
        self._held = rest
        self._pieces.append(CallPiece(name=name))

    def _in_arguments(self) -> bool:
        text = self._held
        found, clear = None, len(text)
        if "<" in text or "\n" in text:  # where an end may begin
            found = min((at for end in _ENDS if (at := text.find(end)) >= 0), default=None)
            begins = max(begun(text, end) for end in _ENDS)
            clear = clear - begins if found is None else found
        at = self._scan.feed(text[:clear], 0)
        self._held = text[at:]
        ends = self._scan.done or found is not None
        if at or ends:
            self._pieces.append(CallPiece(arguments=text[:at], complete=ends))
        if ends:
            self._step = self._after_arguments
        return ends

    def _after_arguments(self) -> bool:
        if self._take_end(_AFTER_JSON, CALL_END, CALLS_END):
            self._step = self._after_call
        return self._step == self._after_call

    def _after_call(self) -> bool:
        """Read on to the end of all calls, so that a thought may end or begin behind it."""
        return self._take_end(_AFTER_CALL, CALLS_END)

    def _take_end(self, before: re.Pattern[str], *ends: str) -> bool:
        """Take the one of these that comes next; over if it is the last, or none comes."""
        match = before.match(self._held)
        assert match is not None, "it matches nothing as well"
        self._held = self._held[match.end() :]
        found = next((end for end in ends if self._held.startswith(end)), "")
        if not found:
            return self._fail_unless(viable=any(end.startswith(self._held) for end in ends))
        self._held = self._held.removeprefix(found)
        self.over = found == CALLS_END
        return True

    def _fail_unless(self, *, viable: bool) -> bool:
        self.over = not viable
        return False


def _word(text: str) -> re.Match[str]:
    match = _WORD.match(text)
    assert match is not None, "it matches nothing as well"
    return match
