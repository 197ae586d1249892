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


class Vocabulary:
    """A model's tokens as llguidance wants them; the bytes are those that the detokenizer gives.

    The library can read a tokenizer.json by itself, but takes some tokens for special that are
    ordinary text.
    """

    bos_token_id = None

    def __init__(self, tokenizer: JsonTokenizer, *, size: int, eos_ids: Sequence[int]) -> None:
        """List the tokens; ids from the tokenizer's end to ``size`` are never allowed."""
        self.special_tokens = {
            text: token_id
            for text, token_id in tokenizer.special_tokens.items()
            if not tokenizer.token_bytes(token_id) and token_id < size
        }
        self.special_token_ids = list(self.special_tokens.values())
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(size)]
        for text, token_id in self.special_tokens.items():
            self.tokens[token_id] = text.encode()
        self.eos_token_id = eos_ids[0]
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return self._tokenizer.encode(text, special=False)


class GrammarCompiler:
    """Compiles grammars for one model's vocabulary, in a thread of its own, and keeps the last."""

    def __init__(self, tokenizer: Path, *, vocabulary: int, eos_ids: Sequence[int]) -> None:
        """Begin to read the vocabulary, which takes some tenths of a second; compilations wait.

        Args:
            tokenizer: a tokenizer.json.
            vocabulary: how many logits the model has.
            eos_ids: the tokens that end a turn.
        """
        self._size = vocabulary
        self._limits = llguidance.LLParserLimits(
            step_lexer_fuel=STEP_FUEL, max_lexer_states=MAX_STATES, verbose_errors=False
        )
        self._compiled: OrderedDict[Grammar, Constraint] = OrderedDict()
        self._thread = _thread_of_stack(STACK_BYTES)
        self._vocabulary = self._thread.submit(_read_vocabulary, tokenizer, vocabulary, eos_ids)

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
        vocabulary, tokenizer = self._vocabulary.result()
        text = lark(grammar, vocabulary.special_tokens)
        matcher = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise GrammarError(reason(matcher.get_error()))
        made = Constraint(matcher, self._size)
        # The first tokens cost most, and a grammar that allows nothing shows it only now.
        made.allowed()
        return made


def _read_vocabulary(
    tokenizer: Path, size: int, eos_ids: Sequence[int]
) -> tuple[Vocabulary, llguidance.LLTokenizer]:
    vocabulary = Vocabulary(JsonTokenizer.from_file(tokenizer), size=size, eos_ids=eos_ids)
    wrapper = llguidance.TokenizerWrapper(vocabulary)
    return vocabulary, llguidance.LLTokenizer(wrapper, eos_token=list(eos_ids))


def _thread_of_stack(size: int) -> ThreadPoolExecutor:
    """Return an executor whose only thread has a stack of that many bytes."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-compiler")
    before = threading.stack_size(size)
    try:
        thread.submit(int).result()  # the thread begins with its first task
    finally:
        threading.stack_size(before)
    return thread
