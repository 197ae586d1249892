"""What a generation says so far: its token ids, taken apart."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from gpu_worker.dialect.detokenizer import Detokenizer
from gpu_worker.dialect.output import Output
from gpu_worker.dialect.tools import CallPiece


class Shown(msgspec.Struct, frozen=True):
    """What some tokens brought."""

    content: str
    reasoning: str
    calls: list[CallPiece]
    token_count: int  # of the tokens given, up to the one that ends the answer


class AnswerParser(Protocol):
    """Takes text apart; what has come out depends on the text alone, not on how it was cut."""

    @property
    def output(self) -> Output:
        """Where what comes out gathers."""

    @property
    def in_thought(self) -> bool:
        """What came last belongs to a thought."""

    @property
    def undecided(self) -> bool:
        """What came last may belong to a thought."""

    def feed(self, text: str) -> None:
        """Take more text, unless the answer has ended."""

    def end(self, *, cut: bool) -> None:
        """Take the end of the text; cut: by max_tokens, not by the model."""


class Answer:
    """Token ids to what is shown of them. All of it depends on the ids alone, not on the calls."""

    def __init__(self, token_bytes: Callable[[int], bytes], parser: AnswerParser) -> None:
        """Begin before the first token.

        Args:
            token_bytes: the bytes that a token id stands for; empty for one that is not shown.
            parser: new, and nobody else's.
        """
        self._detokenizer = Detokenizer(token_bytes)
        self._parser = parser
        self._output = parser.output
        self._in_thought = parser.in_thought
        self._undecided = 0
        self.reasoning_tokens = 0

    @property
    def ended(self) -> bool:
        """A stop text has matched, or all calls have been made; what follows does not count."""
        return self._output.ended

    @property
    def called(self) -> bool:
        """A function has been called."""
        return self._output.call_count > 0

    def feed(self, token_ids: Sequence[int]) -> Shown:
        """Take tokens."""
        parser, count = self._parser, 0
        for count, token_id in enumerate(token_ids, start=1):  # noqa: B007 - counts those taken
            text = self._detokenizer.feed(token_id)
            began_in_thought = self._in_thought
            if text:
                parser.feed(text)
                self._in_thought = parser.in_thought
            if began_in_thought or self._in_thought:
                self.reasoning_tokens += 1 + self._undecided
                self._undecided = 0
            else:
                self._undecided = self._undecided + 1 if parser.undecided else 0
            if self._output.ended:
                break
        return self._taken(count)

    def flush(self, *, cut: bool) -> Shown:
        """Take the end of the text.

        Args:
            cut: by max_tokens, not by the model. A character that was cut in two is left out: the
                model has not written it wrong, it was not let finish.
        """
        tail = self._detokenizer.flush()
        if tail and not cut and not self.ended:
            self._parser.feed(tail)
        if not self.ended:
            self._parser.end(cut=cut)
        return self._taken(0)

    def _taken(self, token_count: int) -> Shown:
        output = self._output
        shown = Shown("".join(output.content), "".join(output.reasoning), output.calls, token_count)
        output.content.clear()
        output.reasoning.clear()
        output.calls = []
        return shown
