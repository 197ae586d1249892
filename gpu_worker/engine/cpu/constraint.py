"""Holds one generation to its grammar, by llguidance, token by token."""

import llguidance
import numpy as np
import numpy.typing as npt

from gpu_worker.engine.cpu.lark import reason
from gpu_worker.engine.grammar import GrammarError


class Constraint:
    """Where one generation stands in its grammar.

    Its automaton grows as it is followed, and is of no use once that failed: so no other
    generation has part in it, though the library could share it.
    """

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: int) -> None:
        """Take a matcher that nobody else uses."""
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._bits = np.zeros(-(-vocabulary // 32), np.uint32)

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
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little", count=self._vocabulary)
        tokens = np.flatnonzero(bits.view(np.bool_))
        if self._matcher.is_error():
            raise GrammarError(reason(self._matcher.get_error()))
        if len(tokens) == 0:
            raise GrammarError("no token of the model's vocabulary fits the grammar here")
        return tokens

    def advance(self, token_id: int) -> None:
        """Note that an allowed token was chosen."""
        self._matcher.consume_token(token_id)
