"""Where generated text ends: before the first stop text that is complete, over any token border."""

from collections.abc import Sequence


class StopStrings:
    """Holds back what may be the start of a stop text, and nothing else.

    The text ends at the stop text that is complete first; of several that are complete with the
    same character the longest counts. What has been emitted depends on the text alone, not on how
    it was cut into calls.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Begin before the first character.

        Args:
            stops: non-empty texts.
        """
        self._patterns = [_Pattern(stop) for stop in stops]
        self._first = frozenset(stop[0] for stop in stops)
        self._held = ""
        self.matched = False

    def feed(self, text: str) -> str:
        """Return the text that can be shown now; nothing after a match."""
        if self.matched:
            return ""
        if not self._held and self._first.isdisjoint(text):
            return text
        gathered = self._held + text
        for position, character in enumerate(text, start=len(self._held) + 1):
            cut = max([pattern.advance(character) for pattern in self._patterns])
            if cut:
                self.matched = True
                self._held = ""
                return gathered[: position - cut]
        begun = max(pattern.state for pattern in self._patterns)
        shown = len(gathered) - begun
        self._held = gathered[shown:]
        return gathered[:shown]

    def flush(self) -> str:
        """Return what was held back, at the end of the text; another may begin."""
        held, self._held = self._held, ""
        for pattern in self._patterns:
            pattern.state = 0
        return held


class _Pattern:
    """One stop text as a Knuth-Morris-Pratt automaton; ``state`` characters of it are matched."""

    def __init__(self, text: str) -> None:
        self._text = text
        # For each prefix, the length of its longest proper prefix that is also its suffix: as far
        # as a text has matched, since a stop text may be longer than any answer.
        self._fallback = [0]
        self.state = 0

    def advance(self, character: str) -> int:
        """Take one character; return the length of the stop text if that completes it, else 0."""
        state = self.state
        while state and self._text[state] != character:
            state = self._fallback[state - 1]
        if self._text[state] == character:
            state += 1
            if state > len(self._fallback):
                self._learn()
        self.state = state
        if state == len(self._text):
            return state
        return 0

    def _learn(self) -> None:
        """Add the fallback of the next prefix."""
        last = self._text[len(self._fallback)]
        matched = self._fallback[-1]
        while matched and last != self._text[matched]:
            matched = self._fallback[matched - 1]
        self._fallback.append(matched + (last == self._text[matched]))
