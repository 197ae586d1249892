"""What a grammar allows to be written, byte by byte, without a model."""

import random
from collections.abc import Sequence

import llguidance

from gpu_worker.engine.grammar import Grammar
from gpu_worker.engine.guidance.lark import lark

_BYTES = llguidance.LLTokenizer("byte")
_END = _BYTES.eos_token


class GrammarTexts:
    """The texts of one grammar; markers in it are text as well."""

    def __init__(self, grammar: Grammar, *, ends: Sequence[str] = ('"', "}", "]")) -> None:
        """Compile a grammar.

        Args:
            grammar: all that may be written.
            ends: what ends something that could go on for long.
        """
        self._ends = [list(end.encode()) for end in ends]
        self._grammar = llguidance.LLMatcher.grammar_from_lark(lark(grammar, {}))
        if message := llguidance.LLMatcher.validate_grammar(self._grammar, _BYTES):
            raise AssertionError(message)

    def allow(self, text: str) -> bool:
        """Tell whether a text is one of them, from beginning to end."""
        matcher = self._matcher()
        data = text.encode()
        return matcher.try_consume_tokens(list(data)) == len(data) and matcher.is_accepting()

    def begin_with(self, text: str) -> bool:
        """Tell whether one of them begins like this."""
        data = text.encode()
        return self._matcher().try_consume_tokens(list(data)) == len(data)

    def random(self, seed: int) -> str:
        """Return one of them, in which a string goes on about as long as it need."""
        chance, matcher, data = random.Random(seed), self._matcher(), bytearray()
        while not matcher.is_stopped():
            mask = matcher.compute_bitmask()
            allowed = [[at] for at in range(_END + 1) if mask[at // 8] >> at % 8 & 1]
            # What ends something comes up rarely among the characters of a string.
            if chance.random() < 0.2:
                ends = [
                    end
                    for end in (*self._ends, [_END])
                    if end[:1] in allowed and matcher.validate_tokens(end) == len(end)
                ]
                allowed = ends or allowed
            tokens = chance.choice(allowed)
            matcher.consume_tokens(tokens)
            data += bytes(token for token in tokens if token != _END)
        assert not matcher.is_error(), matcher.get_error()
        return data.decode()

    def _matcher(self) -> llguidance.LLMatcher:
        return llguidance.LLMatcher(_BYTES, self._grammar)
