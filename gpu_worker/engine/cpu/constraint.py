"""Holds one generation to its grammar, by llguidance, token by token."""

from collections.abc import Callable, Sequence

import llguidance
import numpy as np
import numpy.typing as npt

from gpu_worker.engine.grammar import GrammarError
from gpu_worker.engine.guidance.lark import reason

# Tokens from one renewal to the next. It takes some 10 ms, and a second per megabyte that was said.
RENEWAL_TOKENS = 64
TOO_LARGE = "the grammar takes too many states to follow: make its patterns simpler"
_TOO_MANY_STATES = "too many states"

Renew = Callable[[Sequence[int]], llguidance.LLMatcher]


class Constraint:
    """Where one generation stands in its grammar.

    Its automaton grows as it is followed, and is of no use once that failed: so no other
    generation has part in it, though the library could share it. When it is full, it is begun anew
    and led to the same place, which leaves out all that was only looked at on the way.
    """

    def __init__(
        self, matcher: llguidance.LLMatcher, vocabulary: int, *, renew: Renew | None = None
    ) -> None:
        """Begin.

        Args:
            matcher: one that nobody else uses.
            vocabulary: how many logits the model has.
            renew: makes another one that has consumed these tokens; None if that takes too long.
        """
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._renew = renew
        self._bits = np.zeros(-(-vocabulary // 32), np.uint32)
        self._tokens: list[int] = []
        self._renewed_at = 0
        self._has_failed_to_advance = False

    @property
    def is_complete(self) -> bool:
        """Whether the text is allowed as it is and nothing can follow."""
        return bool(self._matcher.is_stopped() and not self._matcher.is_error())

    def allowed(self) -> npt.NDArray[np.int64]:
        """Return the ids of all tokens that may follow, ascending; at least one.

        A token that ends the turn is among them exactly where the grammar may end.

        Raises:
            GrammarError: nothing may follow, or following the grammar became too much work.
        """
        tokens = self._mask()
        if self._is_full() and self._has_begun_anew():
            tokens = self._mask()
        if self._is_full():
            raise GrammarError(TOO_LARGE)
        if self._matcher.is_error():
            raise GrammarError(reason(self._matcher.get_error()))
        if len(tokens) == 0:
            raise GrammarError("no token of the model's vocabulary fits the grammar here")
        return tokens

    def advance(self, token_id: int) -> None:
        """Note that an allowed token was chosen."""
        self._tokens.append(token_id)
        if not self._matcher.consume_token(token_id):
            # The mask has looked as far as this, but the automaton may have been full just then.
            self._has_failed_to_advance = True

    def _mask(self) -> npt.NDArray[np.int64]:
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little", count=self._vocabulary)
        return np.flatnonzero(bits.view(np.bool_))

    def _is_full(self) -> bool:
        return self._matcher.is_error() and (
            self._has_failed_to_advance or _TOO_MANY_STATES in self._matcher.get_error()
        )

    def _has_begun_anew(self) -> bool:
        if self._renew is None or len(self._tokens) - self._renewed_at < RENEWAL_TOKENS:
            return False
        self._matcher = self._renew(self._tokens)
        self._renewed_at = len(self._tokens)
        self._has_failed_to_advance = False
        return True
