"""Holds generations to grammars, by llguidance: compiled once, followed token by token."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llguidance
import numpy as np
import numpy.typing as npt

from gpu_worker.dialect.tokenizer import JsonTokenizer
from gpu_worker.engine.cpu.errors import ModelError
from gpu_worker.engine.cpu.lark import lark, reason
from gpu_worker.engine.grammar import Grammar, GrammarError

CACHED_GRAMMARS = 64
COMPILE_TIMEOUT_S = 10.0
# The library recurses over chains of references; memory is taken only as far as it is needed.
STACK_BYTES = 128 << 20
# Work for one token, which everybody in the batch waits for: some 7 ms at the worst.
STEP_FUEL = 100_000
# Size of one grammar's automaton, at 1 to 2 kB a state.
MAX_STATES = 50_000


class Constraint:
    """Where one generation stands in its grammar."""

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

    def copy(self) -> "Constraint":
        """Return another one that stands at the same place; the automaton is shared."""
        return Constraint(self._matcher.deep_copy(), self._vocabulary)


class GrammarCompiler:
    """Compiles grammars for one model's vocabulary, in a thread of its own, and keeps the last."""

    def __init__(self, tokenizer: Path, *, vocabulary: int, eos_ids: Sequence[int]) -> None:
        """Read the vocabulary; takes tenths of a second.

        Args:
            tokenizer: a tokenizer.json.
            vocabulary: how many logits the model has; ids beyond the tokenizer's are never allowed.
            eos_ids: the tokens that end a turn.

        Raises:
            ModelError: the tokenizer does not fit the model.
        """
        text = tokenizer.read_text(encoding="utf-8")
        try:
            self._tokenizer = llguidance.LLTokenizer(
                text, n_vocab=vocabulary, eos_token=list(eos_ids) or None
            )
        except ValueError as error:
            raise ModelError(f"its tokenizer.json does not fit its weights: {error}") from error
        own = JsonTokenizer(text)
        self._special_tokens = {
            content: token_id
            for content, token_id in own.special_tokens.items()
            if not own.token_bytes(token_id)
        }
        self._vocabulary = vocabulary
        self._limits = llguidance.LLParserLimits(
            step_lexer_fuel=STEP_FUEL, max_lexer_states=MAX_STATES, verbose_errors=False
        )
        self._compiled: OrderedDict[Grammar, Constraint] = OrderedDict()
        self._thread = _thread_of_stack(STACK_BYTES)

    async def compile(self, grammar: Grammar) -> Constraint:
        """Return a constraint at the grammar's beginning, which the caller copies.

        Raises:
            GrammarError: it cannot be compiled, or not in time.
        """
        known = self._compiled.get(grammar)
        if known is not None:
            self._compiled.move_to_end(grammar)
            return known
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(COMPILE_TIMEOUT_S):
                made = await loop.run_in_executor(self._thread, self._compile, grammar)
        except TimeoutError as error:
            raise GrammarError(
                f"the grammar was not compiled within {COMPILE_TIMEOUT_S:.0f} s: make it simpler"
            ) from error
        self._compiled[grammar] = made
        if len(self._compiled) > CACHED_GRAMMARS:
            self._compiled.popitem(last=False)
        return made

    def close(self) -> None:
        """Compile nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _compile(self, grammar: Grammar) -> Constraint:
        matcher = llguidance.LLMatcher(
            self._tokenizer, lark(grammar, self._special_tokens), log_level=0, limits=self._limits
        )
        if matcher.is_error():
            raise GrammarError(reason(matcher.get_error()))
        made = Constraint(matcher, self._vocabulary)
        # The first tokens cost most, and a grammar that allows nothing shows it only now.
        made.allowed()
        return made


def _thread_of_stack(size: int) -> ThreadPoolExecutor:
    """Return an executor whose only thread has a stack of that many bytes."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-compiler")
    before = threading.stack_size(size)
    try:
        thread.submit(int).result()  # the thread begins with its first task
    finally:
        threading.stack_size(before)
    return thread
