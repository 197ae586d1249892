"""Takes an answer in harmony apart: messages one after the other, each with a header of its own.

An answer begins within a header, for the prompt ends with whose message it is. From there:

* HEADER, up to the marker that begins the message. What stands there is held until it is clear
  what it is. Models also write a text where a header belongs: if the message ends after it, it was
  thought, if the answer ends, it was said, and so it was once it is longer than any header.
* THOUGHT, CONTENT and CALL, up to any marker that no message contains. The first two are shown as
  they come, and the third is read by a reader of its own.

What has come out depends on the text alone, not on how it was cut. No marker is ever shown. When
max_tokens cuts an answer within a header, nothing of that is shown.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto

from gpu_worker.dialect.family import harmony_header
from gpu_worker.dialect.family.harmony_header import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    MARKERS,
    MESSAGE,
    RETURN,
    START,
    Header,
    Kind,
)
from gpu_worker.dialect.family.harmony_reader import HarmonyReader
from gpu_worker.dialect.output import Output
from gpu_worker.dialect.thinking import Thinking
from gpu_worker.dialect.tools import Tool

LONGEST_HEADER = 256  # characters; a name of a function takes up to 64

_MARKER = re.compile("|".join(map(re.escape, MARKERS)))
_IN_HEADER = re.compile("|".join(map(re.escape, (*MARKERS, "{"))))
# What may stand before the first channel of a header.
_ADDRESS = re.compile(r"\s*[a-z_.]*(?:\s*to=[^\s<]*)?\s*")

_FIRST_WORDS = ("to=", "assistant", "analysis", "commentary", "final")


class State(Enum):
    """What the next character belongs to."""

    HEADER = auto()
    THOUGHT = auto()
    CONTENT = auto()
    CALL = auto()


BEGINNINGS = {
    Thinking.NO: State.CONTENT,
    Thinking.OPEN: State.THOUGHT,
    Thinking.MAYBE: State.HEADER,
}
STATES = {Kind.THOUGHT: State.THOUGHT, Kind.CONTENT: State.CONTENT, Kind.CALL: State.CALL}


class HarmonyParser:
    """Feeds on text; what comes out gathers in ``output``."""

    def __init__(
        self,
        *,
        thinking: Thinking = Thinking.MAYBE,
        tools: Sequence[Tool] = (),
        most_calls: int | None = None,
        stops: Sequence[str] = (),
    ) -> None:
        """Begin before the first character.

        Args:
            thinking: MAYBE where the prompt ends before a header, else which message it began.
            tools: that may be called.
            most_calls: the answer ends after so many; None for any number.
            stops: texts that end the content.
        """
        self.output = Output(stops=stops, most_calls=most_calls)
        self._names = frozenset(tool.name for tool in tools)
        self._state = BEGINNINGS[thinking]
        self._has_role = False  # the header begins with whose message it is
        self._reader = HarmonyReader("")
        self._held = ""

    @property
    def in_thought(self) -> bool:
        """What came last belongs to a thought."""
        return self._state is State.THOUGHT

    @property
    def undecided(self) -> bool:
        """What came last may belong to a thought."""
        return self._state is State.HEADER

    def feed(self, text: str) -> None:
        """Take more text, unless the answer has ended."""
        # Nearly every token of nearly every answer has no place where a marker may begin.
        if not self._held and "<" not in text:
            if self._state is State.CONTENT:
                self.output.say(text)
                return
            if self._state is State.THOUGHT:
                self.output.think(text)
                return
        self._held += text
        while self._held and not self.output.ended:
            if not self._advance():
                return

    def end(self, *, cut: bool) -> None:
        """Take the end of the text.

        Args:
            cut: by max_tokens, not by the model.
        """
        held, self._held = self._held, ""
        mid_marker = cut and bool(held.strip())
        if self._state is not State.HEADER:
            if not mid_marker:
                self._show(held)
            if not cut:
                self._end_message()
        elif not cut:
            self._take_headless(held, ends_answer=True)
        elif not self._may_be_header(held):
            text = held[: len(held) - _begun(held)]
            mid_marker = text != held
            self._take_headless(text, ends_answer=True)
        self.output.end(mid_marker=mid_marker)

    def _advance(self) -> bool:
        """Use up what is held as far as it is clear; False if more has to come first."""
        if self._state is State.HEADER:
            return self._read_header()
        return self._read_message()

    def _read_message(self) -> bool:
        text = self._held
        match = _MARKER.search(text)
        clear = match.start() if match else len(text) - _begun(text)
        self._held = text[clear:]
        self._show(text[:clear])
        if match is None or self.output.ended:
            return False
        if match[0] in (MESSAGE, CONSTRAIN):  # no place for them
            self._held = text[match.end() :]
            return True
        self._end_message()
        self._begin_header(text, match)
        return True

    def _read_header(self) -> bool:
        text = self._held
        for match in _IN_HEADER.finditer(text):
            if match.start() > LONGEST_HEADER:
                return self._give_header_up()
            if self._take_mark(text, match):
                return True
        if len(text) - _begun(text) > LONGEST_HEADER:
            return self._give_header_up()
        return False

    def _take_mark(self, text: str, match: re.Match[str]) -> bool:
        """Act on a mark in a header; False if the header goes on after it."""
        before = text[: match.start()]
        if match[0] == MESSAGE:
            self._held = text[match.end() :]
            self._begin_message(self._header(before, is_whole=True))
        elif match[0] == "{":
            # Arguments, after a header that lacks its end.
            if "{" in before or not (header := self._header(before)).function:
                return False
            self._held = text[match.start() :]
            self._begin_message(header)
        elif match[0] == CONSTRAIN:
            return False
        elif match[0] == CHANNEL:
            if CHANNEL in before or _ADDRESS.fullmatch(before):
                return False
            self._take_headless(before, ends_answer=False)
            self._begin_header(text, match)
        else:
            self._take_headless(before, ends_answer=match[0] in (RETURN, CALL))
            self._begin_header(text, match)
        return True

    def _begin_header(self, text: str, match: re.Match[str]) -> None:
        """Go on after a marker, which may be part of the header."""
        self._state = State.HEADER
        self._has_role = match[0] == START
        self._held = text[match.start() if match[0] == CHANNEL else match.end() :]

    def _give_header_up(self) -> bool:
        """Take what is longer than any header as a message that has none."""
        text = self._held
        header = self._header(text[:LONGEST_HEADER])
        self._held = header.rest.lstrip() + text[LONGEST_HEADER:]
        self._begin_message(_uncalled(header))
        return True

    def _take_headless(self, text: str, *, ends_answer: bool) -> None:
        """Take what stood where a header belongs, and was not followed by a message."""
        header = self._header(text)
        if header.function and ends_answer:
            self._begin_message(header)
        elif rest := header.rest.strip():
            is_said = ends_answer and header.kind is Kind.CONTENT
            is_final = is_said or header.channel == "final"
            self._begin_message(Header(channel="final" if is_final else "analysis"))
            self._show(rest)
        self._end_message()

    def _header(self, text: str, *, is_whole: bool = False) -> Header:
        return harmony_header.read(text, self._names, has_role=self._has_role, is_whole=is_whole)

    def _may_be_header(self, text: str) -> bool:
        """Tell of a text that was cut if it was to become a header."""
        if self._has_role or CHANNEL in text or "to=" in text:
            return True
        begun = text.strip()
        return any(word.startswith(begun) for word in _FIRST_WORDS)

    def _begin_message(self, header: Header) -> None:
        self._state = STATES[header.kind]
        if header.kind is Kind.THOUGHT:
            self.output.begin_thought()
        elif header.kind is Kind.CONTENT:
            self.output.begin_paragraph()
        else:
            self._reader = HarmonyReader(header.function)
            self._show("")

    def _end_message(self) -> None:
        if self._state is State.CALL:
            for piece in self._reader.end():
                self.output.call(piece)
        self._state = State.HEADER

    def _show(self, text: str) -> None:
        if self._state is State.THOUGHT:
            self.output.think(text)
        elif self._state is State.CONTENT:
            self.output.say(text)
        elif not self._reader.over:
            for piece in self._reader.feed(text)[0]:
                self.output.call(piece)


def _uncalled(header: Header) -> Header:
    """Return a header without the call, whose arguments never came."""
    return Header(channel=header.channel, is_addressed=header.is_addressed)


def _begun(text: str) -> int:
    """Return how much of a marker the text ends in."""
    at = text.rfind("<", max(0, len(text) - len(CONSTRAIN) + 1))
    return len(text) - at if at >= 0 and any(m.startswith(text[at:]) for m in MARKERS) else 0
