"""Takes generated text apart into what is thought, what is said and what is called.

The states and what leads from one to the next:

* START, where no content stands yet: at the beginning, after a thought, after a call. Only here can
  the model open a thought (a ``<think>`` in the middle of a text is text, unless a family's markers
  are control tokens), and only here do calls begin that have no marker.
* LABEL, between the begin marker of a thought and the thought, in families that write one.
* THOUGHT, until its end marker. A call inside a thought ends it, if it is one; the end marker that
  follows then shows nothing. Nor does another begin marker, where markers are control tokens.
* CONTENT, until the marker of a call.
* CALL, until the family's reader is through. What turns out to be no call is shown as it was read.

What has come out depends on the text alone, not on how it was cut. When max_tokens cuts a text,
what may be the start of a marker is not shown.
"""

from collections.abc import Sequence
from enum import Enum, auto

from gpu_worker.dialect.calls import CallFormat, CallReader
from gpu_worker.dialect.output import Output
from gpu_worker.dialect.thinking import Thinking, ThoughtMarkers
from gpu_worker.dialect.tools import CallPiece, Tool


class State(Enum):
    """What the next character belongs to."""

    START = auto()
    LABEL = auto()
    THOUGHT = auto()
    CONTENT = auto()
    CALL = auto()


BEGINNINGS = {
    Thinking.NO: State.CONTENT,
    Thinking.OPEN: State.THOUGHT,
    Thinking.MAYBE: State.START,
}


THOUGHTS = (State.LABEL, State.THOUGHT)


class Parser:
    """Feeds on text; what comes out gathers in ``output``."""

    def __init__(
        self,
        *,
        markers: ThoughtMarkers | None = None,
        thinking: Thinking = Thinking.NO,
        calls: CallFormat | None = None,
        tools: Sequence[Tool] = (),
        most_calls: int | None = None,
        stops: Sequence[str] = (),
    ) -> None:
        """Begin before the first character.

        Args:
            markers: of thoughts; None for a model that has none.
            thinking: where the answer begins.
            calls: how calls are written; None if none are expected.
            tools: that may be called.
            most_calls: the answer ends after so many; None for any number.
            stops: texts that end the content.
        """
        controls = markers is not None and markers.are_control_tokens
        self.output = Output(stops=stops, most_calls=most_calls, trims=calls is not None)
        self._markers = markers if controls or thinking is not Thinking.NO else None
        self._calls = calls
        self._openings = calls.openings if calls else ()
        # Without tools there is nothing for it to open, and JSON that is content need not wait.
        self._bare_opening = calls.bare_opening if calls and tools else ""
        self._tools = tools
        ends = (markers.end,) if markers else ()
        controls_of = (markers.begin, markers.end) if markers and controls else ()
        self._ends_content = (*self._openings, *controls_of)
        self._ends_thought = (*self._openings, *(controls_of or ends))
        # Of markers that end a thought or content; those of content alone if it has no thoughts.
        watched = self._ends_thought if self._markers else self._ends_content
        self._first = frozenset(marker[0] for marker in (*watched, *self._ends_content))
        self._held = ""
        self._gap: list[str] = []  # whitespace in START, which a marker may make nobody's
        self._reader: CallReader | None = None
        self._called_in = State.CONTENT
        self._state = BEGINNINGS[thinking]
        if self._state is State.CONTENT:
            self._state = self._after_marker()

    @property
    def in_thought(self) -> bool:
        """What came last belongs to a thought."""
        state = self._called_in if self._state is State.CALL else self._state
        return state in THOUGHTS

    @property
    def undecided(self) -> bool:
        """What came last may belong to a thought."""
        return self._state is State.START

    def feed(self, text: str) -> None:
        """Take more text, unless the answer has ended."""
        # Nearly every token of nearly every answer has no place where a marker may begin.
        if not self._held and self._first.isdisjoint(text):
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
        held, self._held = "".join((*self._gap, self._held)), ""
        if self._reader is not None:
            if not cut:
                self._take(self._reader.end())
            held = self._reader.text
        mid_marker = cut and bool(held.strip())
        if not mid_marker:
            self._show(held, State.THOUGHT if self.in_thought else State.CONTENT)
        self.output.end(mid_marker=mid_marker)

    def _advance(self) -> bool:
        """Use up what is held as far as it is clear; False if more has to come first."""
        if self._state is State.CALL:
            return self._read_call()
        if self._state is State.START:
            return self._leave_start()
        if self._state is State.LABEL:
            return self._leave_label()
        if self._state is State.THOUGHT:
            return self._scan(self._ends_thought)
        return self._scan(self._ends_content)

    def _leave_start(self) -> bool:
        text = self._held.lstrip()
        self._gap.append(self._held[: -len(text) or None])
        self._held = text
        begin, end = (self._markers.begin, self._markers.end) if self._markers else ("", "")
        if begin and text.startswith(begin):
            self._held = text[len(begin) :]
            self._begin_thought()
        elif end and text.startswith(end):
            self._held = text[len(end) :]  # of a thought that a call has ended, or of none
            self.output.begin_content()
        elif self._bare_opening and text.startswith(self._bare_opening):
            self._state = State.CONTENT
            self.output.say("".join(self._gap))  # it is shown if this is no call
            self._gap = []
            if self.output.ended:
                return False
            self._held = text[len(self._bare_opening) :]
            self._begin_reading(self._bare_opening)
        elif not text or any(each.startswith(text) for each in (begin, end, self._bare_opening)):
            return False
        else:
            self._state = State.CONTENT
            self._held = "".join((*self._gap, text))
        self._gap = []
        return True

    def _leave_label(self) -> bool:
        label = self._markers.label if self._markers else ""
        if label.startswith(self._held) and self._held != label:
            return False
        self._held = self._held.removeprefix(label)
        self._state = State.THOUGHT
        return True

    def _scan(self, markers: Sequence[str]) -> bool:
        """Show the text up to the first of the markers, and act on that."""
        text = self._held
        found = [(at, marker) for marker in markers if (at := text.find(marker)) >= 0]
        if not found:
            clear = len(text) - max((begun(text, marker) for marker in markers), default=0)
            self._held = text[clear:]
            self._show(text[:clear], self._state)
            return False
        at, marker = min(found)
        self._held = text[at + len(marker) :]
        self._show(text[:at], self._state)
        if self.output.ended:
            return False
        if marker in self._openings:
            self._begin_reading(marker)
        elif self._markers is not None and marker == self._markers.begin:
            if self._state is State.CONTENT:
                self.output.begin_paragraph()
            self._begin_thought()
        elif self._state is State.THOUGHT:
            self._state = self._after_marker()
            self.output.begin_content()
        # Else the end of a thought that never began, which shows nothing.
        return True

    def _begin_thought(self) -> None:
        self._state = State.LABEL if self._markers and self._markers.label else State.THOUGHT
        self.output.begin_thought()

    def _begin_reading(self, opening: str) -> None:
        assert self._calls is not None
        self._called_in = self._state
        self._reader = self._calls.reader(opening, self._tools)
        self._state = State.CALL

    def _read_call(self) -> bool:
        reader = self._reader
        assert reader is not None
        pieces, self._held = reader.feed(self._held)
        self._take(pieces)
        if self.output.ended or not reader.over:
            return False
        self._reader = None
        self._state = self._called_in
        self._show(reader.text, self._state)
        return True

    def _take(self, pieces: Sequence[CallPiece]) -> None:
        for piece in pieces:
            if self.output.ended:
                return
            if piece.name:
                self._called_in = self._after_marker()
            self.output.call(piece)

    def _after_marker(self) -> State:
        return State.START if self._markers or self._bare_opening else State.CONTENT

    def _show(self, text: str, state: State) -> None:
        if state is State.THOUGHT:
            self.output.think(text)
        else:
            self.output.say(text)


def begun(text: str, marker: str) -> int:
    """Return how much of a marker the text ends in."""
    at = text.find(marker[0], max(0, len(text) - len(marker) + 1))
    while at >= 0:
        if marker.startswith(text[at:]):
            return len(text) - at
        at = text.find(marker[0], at + 1)
    return 0
