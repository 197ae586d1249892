"""Takes generated text apart into what is thought, what is said and what is called.

The states and what leads from one to the next:

* START, where no content stands yet: at the beginning, after a thought, after a call. Only here can
  the model open a thought; a ``<think>`` in the middle of a text is text.
* THOUGHT, until its end marker. A call inside a thought ends it, if it is one.
* CONTENT, until the marker of a call.
* CALL, until the family's reader is through. What turns out to be no call is shown as it was read.

Whitespace beside a marker belongs to nobody. Stop texts look at content alone, before whitespace is
taken off in front of a call. What has come out depends on the text alone, not on how it was cut.
When max_tokens cuts a text, what may be the start of a marker is not shown.
"""

from collections.abc import Collection, Sequence
from enum import Enum, auto

import msgspec

from gpu_worker.dialect.calls import CallFormat, CallReader
from gpu_worker.dialect.stop_strings import StopStrings
from gpu_worker.dialect.tools import CallPiece


class Thinking(Enum):
    """Where an answer begins, as the end of the prompt has it."""

    NO = auto()  # the prompt closed the thought, or the model knows none
    OPEN = auto()  # the prompt opened it
    MAYBE = auto()  # the model opens it, or not


class ThoughtMarkers(msgspec.Struct, frozen=True):
    """What stands around a thought."""

    begin: str
    end: str
    after: str  # what models write between the end marker and the answer


class State(Enum):
    """What the next character belongs to."""

    START = auto()
    THOUGHT = auto()
    CONTENT = auto()
    CALL = auto()


BEGINNINGS = {
    Thinking.NO: State.CONTENT,
    Thinking.OPEN: State.THOUGHT,
    Thinking.MAYBE: State.START,
}


class Parser:
    """Feeds on text; what comes out gathers in ``content``, ``reasoning`` and ``calls``."""

    def __init__(
        self,
        *,
        markers: ThoughtMarkers | None = None,
        thinking: Thinking = Thinking.NO,
        calls: CallFormat | None = None,
        names: Collection[str] = (),
        most_calls: int | None = None,
        stops: Sequence[str] = (),
    ) -> None:
        """Begin before the first character.

        Args:
            markers: of thoughts; None for a model that has none.
            thinking: where the answer begins.
            calls: how calls are written; None if none are expected.
            names: of the functions that may be called.
            most_calls: the answer ends after so many; None for any number.
            stops: texts that end the content.
        """
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[CallPiece] = []
        self.call_count = 0
        self.ended = False
        self._state = BEGINNINGS[thinking]
        self._markers = markers if thinking is not Thinking.NO else None
        self._calls = calls
        self._opening = calls.opening if calls else ""
        self._names = names
        self._most_calls = most_calls
        self._ends_content = (self._opening,) if calls else ()
        self._ends_thought = (*self._ends_content, *((markers.end,) if markers else ()))
        # Of markers that end a thought or content; those of content alone if it has no thoughts.
        ends = self._ends_thought if self._markers else self._ends_content
        self._first = frozenset(marker[0] for marker in ends)
        self._stops = StopStrings(stops) if stops else None
        self._held = ""
        self._reader: CallReader | None = None
        self._called_in = State.CONTENT
        self._thought = Margins(keeps_start=False)
        self._said = Margins(keeps_start=True)
        self._trims = False

    @property
    def in_thought(self) -> bool:
        """What came last belongs to a thought."""
        state = self._called_in if self._state is State.CALL else self._state
        return state is State.THOUGHT

    @property
    def undecided(self) -> bool:
        """What came last may belong to a thought."""
        return self._state is State.START

    def feed(self, text: str) -> None:
        """Take more text, unless the answer has ended."""
        # Nearly every token of nearly every answer has no place where a marker may begin.
        if not self._held and self._first.isdisjoint(text):
            if self._state is State.CONTENT:
                self._say(text)
                return
            if self._state is State.THOUGHT:
                self.reasoning.append(self._thought.feed(text))
                return
        self._held += text
        while self._held and not self.ended:
            if not self._advance():
                return

    def end(self, *, cut: bool) -> None:
        """Take the end of the text.

        Args:
            cut: by max_tokens, not by the model.
        """
        held, self._held = self._held, ""
        if self._reader is not None:
            held = self._reader.text
        if not (cut and held.strip()):
            self._show(held, State.THOUGHT if self.in_thought else State.CONTENT)
        if self._stops is not None:
            self._put(self._stops.flush())
        if cut and held.strip():
            self._said.paragraph()
        self.content.append(self._said.flush())

    def _advance(self) -> bool:
        """Use up what is held as far as it is clear; False if more has to come first."""
        if self._state is State.CALL:
            return self._read_call()
        if self._state is State.START:
            return self._open_thought()
        if self._state is State.THOUGHT:
            return self._scan(self._ends_thought)
        return self._scan(self._ends_content)

    def _open_thought(self) -> bool:
        assert self._markers is not None
        begin, text = self._markers.begin, self._held.lstrip()
        if text.startswith(begin):
            self._held = text[len(begin) :]
            self._thought.paragraph()
            self._state = State.THOUGHT
        elif begin.startswith(text):
            return False
        else:
            self._state = State.CONTENT
        return True

    def _scan(self, markers: Sequence[str]) -> bool:
        """Show the text up to the first of the markers, and act on that."""
        text = self._held
        found = [(at, marker) for marker in markers if (at := text.find(marker)) >= 0]
        if not found:
            clear = len(text) - max((_begun(text, marker) for marker in markers), default=0)
            self._held = text[clear:]
            self._show(text[:clear], self._state)
            return False
        at, marker = min(found)
        self._held = text[at + len(marker) :]
        self._show(text[:at], self._state)
        if self._calls is not None and marker == self._opening:
            self._called_in = self._state
            self._reader = self._calls.reader(self._names)
            self._state = State.CALL
        else:
            self._end_thought()
        return True

    def _read_call(self) -> bool:
        reader = self._reader
        assert reader is not None
        pieces, self._held = reader.feed(self._held)
        for piece in pieces:
            if piece.name:
                self._begin_call()
            self.calls.append(piece)
            if piece.complete and self.call_count == self._most_calls:
                self.ended = True
                return False
        if not reader.over:
            return False
        self._reader = None
        self._state = self._called_in
        self._show(reader.text, self._state)
        return True

    def _begin_call(self) -> None:
        self.call_count += 1
        if self._stops is not None:
            self._put(self._stops.flush())
        self._said.paragraph()
        self._end_thought()
        self._called_in, self._state = self._state, State.CALL

    def _end_thought(self) -> None:
        self._trims = True
        self._state = State.CONTENT if self._markers is None else State.START

    def _show(self, text: str, state: State) -> None:
        if state is State.THOUGHT:
            self.reasoning.append(self._thought.feed(text))
        else:
            self._say(text)

    def _say(self, text: str) -> None:
        if self._trims:
            text = text.lstrip()
            self._trims = not text
        if self._stops is not None:
            text = self._stops.feed(text)
            self.ended = self._stops.matched
        self._put(text)
        if self.ended:
            self.content.append(self._said.flush())

    def _put(self, text: str) -> None:
        self.content.append(self._said.feed(text) if self._opening else text)


class Margins:
    """A text whose whitespace at the end is held back until something follows."""

    def __init__(self, *, keeps_start: bool) -> None:
        """Begin.

        Args:
            keeps_start: whitespace at the start is part of the text.
        """
        self._keeps_start = keeps_start
        self._begun = False
        self._gap: list[str] = []
        self._between = False  # the gap is one between paragraphs

    def feed(self, text: str) -> str:
        """Return what can be shown now."""
        body = text.rstrip()
        gap = text[len(body) :]
        if not body:
            self._gap.append(gap)
            return ""
        if self._gap:
            body = "".join(self._gap) + body
            self._gap = []
            self._between = False
        if gap:
            self._gap.append(gap)
        if not self._begun:
            self._begun = True
            return body if self._keeps_start else body.lstrip()
        return body

    def paragraph(self) -> None:
        """Forget the whitespace; what follows is a paragraph of its own."""
        self._between = self._begun
        self._gap = ["\n\n"] if self._begun else []

    def flush(self) -> str:
        """Return the whitespace at the end of the text, unless it waits for a paragraph."""
        gap, self._gap = "" if self._between else "".join(self._gap), []
        return gap


def _begun(text: str, marker: str) -> int:
    """Return how much of a marker the text ends in."""
    at = text.find(marker[0], max(0, len(text) - len(marker) + 1))
    while at >= 0:
        if marker.startswith(text[at:]):
            return len(text) - at
        at = text.find(marker[0], at + 1)
    return 0
