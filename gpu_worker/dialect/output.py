"""What has come out of an answer: content, reasoning and calls, until somebody takes them."""

from collections.abc import Sequence

from gpu_worker.dialect.stop_strings import StopStrings
from gpu_worker.dialect.tools import CallPiece


class Output:
    """Where every parser puts what it has taken apart.

    Stop texts look at content alone, before whitespace is taken off in front of a call. Whitespace
    beside a thought or a call belongs to nobody.
    """

    def __init__(
        self, *, stops: Sequence[str] = (), most_calls: int | None = None, trims: bool = True
    ) -> None:
        """Begin before the first character.

        Args:
            stops: texts that end the content.
            most_calls: the answer ends after so many; None for any number.
            trims: calls or thoughts may follow content, whose whitespace waits for them.
        """
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[CallPiece] = []
        self.call_count = 0
        self.ended = False  # nothing that follows counts
        self._most_calls = most_calls
        self._stops = StopStrings(stops) if stops else None
        self._thought = Margins(keeps_start=False)
        self._said = Margins(keeps_start=True)
        self._holds_margins = trims
        self._drops_space = False

    def think(self, text: str) -> None:
        """Take more of a thought."""
        self.reasoning.append(self._thought.feed(text))

    def say(self, text: str) -> None:
        """Take more of the content."""
        if self.ended:
            return
        if self._drops_space:
            text = text.lstrip()
            self._drops_space = not text
        if self._stops is not None:
            text = self._stops.feed(text)
            self.ended = self._stops.matched
        self._put(text)
        if self.ended:
            self.content.append(self._said.flush())

    def call(self, piece: CallPiece) -> None:
        """Take more of a call; the answer may end with it."""
        if piece.name:
            self.call_count += 1
            self._flush_stops()
            self._said.paragraph()
            self._drops_space = True
        self.calls.append(piece)
        if piece.complete and self.call_count == self._most_calls:
            self.ended = True

    def begin_thought(self) -> None:
        """Take what is thought from here on as a paragraph of its own."""
        self._thought.paragraph()

    def begin_content(self) -> None:
        """Take what is said from here on as what follows a thought."""
        self._drops_space = True

    def begin_paragraph(self) -> None:
        """Take what is said from here on as a paragraph of its own."""
        self._flush_stops()
        self._said.paragraph()
        self._drops_space = True

    def end(self, *, mid_marker: bool) -> None:
        """Take the end of the text.

        Args:
            mid_marker: it was cut within what may be a marker, which is not shown.
        """
        self._flush_stops()
        if mid_marker:
            self._said.paragraph()
        self.content.append(self._said.flush())

    def _put(self, text: str) -> None:
        self.content.append(self._said.feed(text) if self._holds_margins else text)

    def _flush_stops(self) -> None:
        if self._stops is not None:
            self._put(self._stops.flush())


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
        if self._between:
            text = text.lstrip()
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
