"""What a generation says so far: its token ids, taken apart."""

from collections.abc import Callable, Sequence

import msgspec

from gpu_worker.dialect.detokenizer import Detokenizer
from gpu_worker.dialect.parser import Parser
from gpu_worker.dialect.tools import CallPiece


class Shown(msgspec.Struct, frozen=True):
    """What some tokens brought."""

    content: str
    reasoning: str
    calls: list[CallPiece]
    token_count: int  # of the tokens given, up to the one that ends the answer


class Answer:
    """Token ids to what is shown of them. All of it depends on the ids alone, not on the calls."""

    def __init__(self, token_bytes: Callable[[int], bytes], parser: Parser) -> None:
        """Begin before the first token.

        Args:
            token_bytes: the bytes that a token id stands for; empty for one that is not shown.
            parser: new, and nobody else's.
        """
        self._detokenizer = Detokenizer(token_bytes)
        self._parser = parser
        self._undecided = 0
        self.reasoning_tokens = 0

    @property
    def ended(self) -> bool:
        """A stop text has matched, or all calls have been made; what follows does not count."""
        return self._parser.ended

    @property
    def called(self) -> bool:
        """A function has been called."""
        return self._parser.call_count > 0

    def feed(self, token_ids: Sequence[int]) -> Shown:
        """Take tokens."""
        parser, count = self._parser, 0
        for count, token_id in enumerate(token_ids, start=1):  # noqa: B007 - counts those taken
            text = self._detokenizer.feed((token_id,))
            thought = parser.in_thought
            if text:
                parser.feed(text)
            if thought or parser.in_thought:
                self.reasoning_tokens += 1 + self._undecided
                self._undecided = 0
            else:
                self._undecided = self._undecided + 1 if parser.undecided else 0
            if parser.ended:
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
        parser = self._parser
        shown = Shown(
            content="".join(parser.content),
            reasoning="".join(parser.reasoning),
            calls=parser.calls,
            token_count=token_count,
        )
        parser.content, parser.reasoning, parser.calls = [], [], []
        return shown
