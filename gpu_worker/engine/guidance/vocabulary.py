"""A model's tokens as llguidance takes them, and how far it may go with a grammar."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import llguidance

from gpu_worker.dialect.tokenizer import JsonTokenizer

# The library recurses over chains of references; memory is taken only as far as it is needed.
STACK_BYTES = 128 << 20
# Work for one token, which everybody in the batch waits for: some 7 ms at the worst.
STEP_FUEL = 100_000
# Size of one generation's automaton, at up to 800 bytes a state, 150 mostly. It grows as it is
# followed: by 5 states a character in a string with a "maxLength", of which one is needed to get
# where it stands. So what was said raises the limit, by less memory than its KV cache takes.
MAX_STATES = 20_000
STATES_PER_BYTE = 2


class _Words:
    """The tokens under the names that the library looks for; their bytes are the detokenizer's.

    The library can read a tokenizer.json by itself, but takes some tokens for special that are
    ordinary text.
    """

    bos_token_id = None

    def __init__(self, tokenizer: JsonTokenizer, *, size: int, eos_ids: Sequence[int]) -> None:
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


class Vocabulary(NamedTuple):
    """What grammars are compiled for."""

    tokenizer: llguidance.LLTokenizer
    special_tokens: dict[str, int]  # text and id of those that stand for no text of their own

    @property
    def stack_bytes(self) -> int:
        """What a thread that compiles needs."""
        return STACK_BYTES

    @classmethod
    def read(cls, tokenizer: Path, *, size: int, eos_ids: Sequence[int]) -> "Vocabulary":
        """Read a tokenizer.json, which takes a second if it is large.

        Args:
            tokenizer: the file.
            size: how many logits the model has; ids from the tokenizer's end on are never allowed.
            eos_ids: the tokens that end a turn.
        """
        return cls.of(JsonTokenizer.from_file(tokenizer), size=size, eos_ids=eos_ids)

    @classmethod
    def of(cls, tokenizer: JsonTokenizer, *, size: int, eos_ids: Sequence[int]) -> "Vocabulary":
        """Take the tokens of a tokenizer that was read."""
        words = _Words(tokenizer, size=size, eos_ids=eos_ids)
        wrapper = llguidance.TokenizerWrapper(words)
        return cls(llguidance.LLTokenizer(wrapper, eos_token=list(eos_ids)), words.special_tokens)

    def matcher(self, text: str, said: Sequence[int] = ()) -> llguidance.LLMatcher:
        """Compile a grammar, in a thread with a stack of STACK_BYTES.

        Args:
            text: in the library's language.
            said: tokens to go on after.
        """
        size = len(self.tokenizer.decode_bytes(list(said)))
        limits = llguidance.LLParserLimits(
            step_lexer_fuel=STEP_FUEL,
            max_lexer_states=MAX_STATES + STATES_PER_BYTE * size,
            verbose_errors=False,
        )
        matcher = llguidance.LLMatcher(self.tokenizer, text, log_level=0, limits=limits)
        matcher.consume_tokens(list(said))
        return matcher


class LibraryVocabulary(NamedTuple):
    """The same for an engine that has llguidance read the tokenizer.json and set its own limits."""

    tokenizer: llguidance.LLTokenizer
    special_tokens: dict[str, int]  # that the library takes for special

    @property
    def stack_bytes(self) -> int:
        """Half of what a thread has where nobody asks for more: the engine's has no more."""
        return 4 << 20

    @classmethod
    def read(
        cls, tokenizer: Path, *, names: Mapping[str, int], size: int, eos_id: int
    ) -> "LibraryVocabulary":
        """Read a tokenizer.json, which takes a second if it is large.

        Args:
            tokenizer: the file.
            names: text and id of its added tokens; none where grammars come with ids.
            size: how many logits the model has.
            eos_id: the token that ends a grammar.
        """
        text = tokenizer.read_text(encoding="utf-8")
        read = llguidance.LLTokenizer(text, n_vocab=size, eos_token=eos_id)
        special = {
            name: token_id
            for name, token_id in names.items()
            if token_id < size and read.is_special_token(token_id)
        }
        return cls(read, special)

    def matcher(self, text: str) -> llguidance.LLMatcher:
        """Compile a grammar, with no limits but the thread's stack."""
        lark = llguidance.LLMatcher.grammar_from_lark(text)
        return llguidance.LLMatcher(self.tokenizer, lark, log_level=0)
