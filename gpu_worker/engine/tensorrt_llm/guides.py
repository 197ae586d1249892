"""What holds an output to a grammar: a text for llguidance, which the engine's own copy compiles.

The library compiles a guide in the loop that computes for everybody. So a grammar is tried out
first, in a process that may die of it, with the vocabulary as the library reads it.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from gpu_worker.engine.grammar import Choice, Grammar, GrammarError, Json, Repeat, Sequence
from gpu_worker.engine.guidance.lanes import (
    MAX_BYTES,
    QUICK_S,
    QUICK_THREADS,
    SLOW_S,
    TOO_COSTLY,
    bounded_wait,
    deep_threads,
)
from gpu_worker.engine.guidance.lark import lark, reason
from gpu_worker.engine.guidance.trial import Trial
from gpu_worker.engine.guidance.vocabulary import LibraryVocabulary
from gpu_worker.engine.json_schema.canonical import canonical

# Which of the library's guides and backends: its other one ignores keywords of JSON Schemas.
BACKEND = "llguidance"
KNOWN_GUIDES = 256
# Spaces where models put them. What the CPU engine says about separators, older versions of the
# library take for text; this is understood by all of them.
JSON_OPTIONS = {
    "lenient": False,
    "coerce_one_of": False,
    "whitespace_pattern": r" |\n {0,32}|\n\t{0,8}",
}

_Result = TypeVar("_Result")


class GrammarTrial(Protocol):
    """Finds out what compiling a grammar takes."""

    def run(self, text: str, *, cpu_limit_s: float) -> int | None:
        """Return the bytes that it takes; None: too much, in time or memory."""

    def close(self) -> None:
        """Try nothing more."""


class _Known(msgspec.Struct, frozen=True):
    text: str
    refusal: str | None


class Guides:
    """Writes grammars for the engine, each once it has been tried."""

    def __init__(self, vocabulary: LibraryVocabulary, trial: GrammarTrial) -> None:
        """Begin.

        Args:
            vocabulary: as the engine reads it.
            trial: for the same vocabulary; closed with this.
        """
        self._vocabulary = vocabulary
        self._trial = trial
        self._combines = combines_properties(vocabulary)
        self._known: OrderedDict[Grammar, _Known] = OrderedDict()
        # What passes a trial needs no more of the stack than that had.
        self._quick = deep_threads(QUICK_THREADS, 2 * vocabulary.stack_bytes)
        # What takes longer waits for its like only.
        self._slow = deep_threads(1, 2 * vocabulary.stack_bytes)

    @classmethod
    def of_model(
        cls, tokenizer: Path, *, names: Mapping[str, int], size: int, eos_id: int
    ) -> "Guides":
        """Read a model's vocabulary; takes a second if it is large.

        Args:
            tokenizer: a tokenizer.json.
            names: text and id of its added tokens.
            size: how many logits the model has.
            eos_id: the end token that the model's tokenizer names: the one that a guide ends with.
        """
        vocabulary = LibraryVocabulary.read(tokenizer, names=names, size=size, eos_id=eos_id)
        return cls(vocabulary, Trial(tokenizer, size=size, eos_ids=[eos_id], by_library=True))

    async def text(self, grammar: Grammar) -> str:
        """Return the guide for a grammar.

        Raises:
            GrammarError: it cannot be compiled, or takes too much time or memory.
            EngineError: this worker is too busy to find out.
        """
        known = self._known.get(grammar)
        if known is None:
            known = await self._find_out(grammar)
            self._known[grammar] = known
            if len(self._known) > KNOWN_GUIDES:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(grammar)
        if known.refusal is not None:
            raise GrammarError(known.refusal)
        return known.text

    def close(self) -> None:
        """Try nothing more; the second call does nothing."""
        for threads in (self._quick, self._slow):
            threads.shutdown(wait=False, cancel_futures=True)
        self._trial.close()

    async def _find_out(self, grammar: Grammar) -> _Known:
        text = await self._in(self._quick, lambda: self._written(grammar))
        fits = await self._in(self._quick, lambda: self._fits(text, QUICK_S))
        if not fits:
            fits = await self._in(self._slow, lambda: self._fits(text, SLOW_S))
        if not fits:
            return _Known(text, TOO_COSTLY)
        problem = await self._in(self._quick, lambda: self._problem(text))
        return _Known(text, problem)

    async def _in(self, threads: ThreadPoolExecutor, job: Callable[[], _Result]) -> _Result:
        async with bounded_wait():
            return await asyncio.get_running_loop().run_in_executor(threads, job)

    # What follows runs in the threads.

    def _written(self, grammar: Grammar) -> str:
        text = lark(grammar, self._vocabulary.special_tokens, json_options=JSON_OPTIONS)
        if not self._combines and any(map(_combines_properties, _schemas(grammar))):
            raise GrammarError(
                'the JSON Schema uses "properties" beside "patternProperties", which cannot be '
                "enforced here: use one of them"
            )
        return text

    def _fits(self, text: str, cpu_limit_s: float) -> bool:
        size = self._trial.run(text, cpu_limit_s=cpu_limit_s)
        return size is not None and size <= MAX_BYTES

    def _problem(self, text: str) -> str | None:
        """Compile what is harmless, and return why it cannot be."""
        matcher = self._vocabulary.matcher(text)
        matcher.compute_bitmask()
        return reason(matcher.get_error()) if matcher.is_error() else None


def combines_properties(vocabulary: LibraryVocabulary) -> bool:
    """Try out whether a property is held to the patterns that its name fits, too.

    Older versions of the library hold it to "properties" alone.
    """
    schema = {
        "type": "object",
        "properties": {"a": {"minimum": 1}},
        "patternProperties": {"^a": {"type": "integer"}},
    }
    matcher = vocabulary.matcher(f"start: %json {json.dumps(schema)}")
    wrong = vocabulary.tokenizer.tokenize_str('{"a":"')
    return bool(matcher.try_consume_tokens(wrong) < len(wrong))


def _schemas(grammar: Grammar) -> Iterator[str]:
    match grammar:
        case Json(schema):
            yield schema
        case Sequence(parts) | Choice(parts):
            for part in parts:
                yield from _schemas(part)
        case Repeat(part):
            yield from _schemas(part)


def _combines_properties(schema: str) -> bool:
    """Tell whether an object anywhere in a schema has properties by name and by pattern."""
    level: list[Any] = [canonical(schema)]
    while level:
        each = level.pop()
        if isinstance(each, dict):
            if each.keys() >= {"properties", "patternProperties"}:
                return True
            level += each.values()
        elif isinstance(each, list):
            level += each
    return False
