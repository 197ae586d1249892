"""Compiles grammars for one model's vocabulary, after they were tried out elsewhere."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from llguidance import LLMatcher

from gpu_worker.dialect.tokenizer import JsonTokenizer
from gpu_worker.engine.cpu.constraint import Constraint
from gpu_worker.engine.cpu.known_grammars import Known, KnownGrammars
from gpu_worker.engine.grammar import Grammar, GrammarError
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
from gpu_worker.engine.guidance.vocabulary import STACK_BYTES, Vocabulary

KNOWN_GRAMMARS = 64
READY_BYTES = 64 << 20

_Result = TypeVar("_Result")


class GrammarCompiler:
    """Makes constraints. What it found out of the last grammars it remembers."""

    def __init__(
        self,
        tokenizer: Path,
        *,
        vocabulary: int,
        eos_ids: Sequence[int],
        read: JsonTokenizer | None = None,
    ) -> None:
        """Begin to read the vocabulary, which takes some tenths of a second; compilations wait.

        Args:
            tokenizer: a tokenizer.json.
            vocabulary: how many logits the model has.
            eos_ids: the tokens that end a turn.
            read: that file, where somebody has read it.
        """
        self._size = vocabulary
        self._known = KnownGrammars[Constraint](count=KNOWN_GRAMMARS, ready_bytes=READY_BYTES)
        self._trial = Trial(tokenizer, size=vocabulary, eos_ids=eos_ids)
        self._quick = deep_threads(QUICK_THREADS, STACK_BYTES)
        self._slow = deep_threads(1, STACK_BYTES)
        self._renewals = deep_threads(1, STACK_BYTES)
        self._vocabulary = self._quick.submit(
            lambda: Vocabulary.of(
                read or JsonTokenizer.from_file(tokenizer),
                size=vocabulary,
                eos_ids=eos_ids,
            )
        )

    async def check(self, grammar: Grammar) -> None:
        """Find out whether a grammar can be compiled; then ``begin`` takes no longer than it must.

        Raises:
            GrammarError: it cannot be compiled, or takes too much time or memory.
            EngineError: the grammars of others took the time; another worker may do better.
        """
        await self._find_out(grammar)

    async def begin(self, grammar: Grammar) -> Constraint:
        """Return a constraint at the grammar's beginning, of the caller's own.

        Raises:
            GrammarError: as for ``check``.
            EngineError: as for ``check``.
        """
        known = await self._find_out(grammar)
        ready = self._known.take(grammar)
        if ready is not None:
            return ready
        lane = self._slow if known.is_slow else self._quick
        async with bounded_wait():
            return await _run(lane, lambda: self._compile(known.text, is_slow=known.is_slow))

    def close(self) -> None:
        """Compile nothing more, and end the process in which grammars are tried out."""
        for lane in (self._quick, self._slow, self._renewals):
            lane.shutdown(wait=False, cancel_futures=True)
        self._trial.close()

    async def _find_out(self, grammar: Grammar) -> Known:
        known = self._known.get(grammar)
        if known is None:
            async with bounded_wait():
                known = await _run(self._quick, lambda: self._try(grammar, is_slow=False))
                if known is None:
                    known = await _run(self._slow, lambda: self._try(grammar, is_slow=True))
        assert known is not None, "the second trial finds out"
        if known.refusal is not None:
            raise GrammarError(known.refusal)
        return known

    # What follows runs in the threads.

    def _try(self, grammar: Grammar, *, is_slow: bool) -> Known | None:
        """Try a grammar out and compile it if it is harmless; None if that takes long to tell."""
        known = self._known.get(grammar)  # an equal one may have waited just before this one
        if known is not None:
            return known
        text = lark(grammar, self._vocabulary.result().special_tokens)
        size = self._trial.run(text, cpu_limit_s=SLOW_S if is_slow else QUICK_S)
        if size is None and not is_slow:
            return None
        made, refusal = self._compile_tried(text, size, is_slow=is_slow)
        known = Known(text, size or 0, is_slow, refusal)
        self._known.add(grammar, known, made)
        return known

    def _compile_tried(
        self, text: str, size: int | None, *, is_slow: bool
    ) -> tuple[Constraint | None, str | None]:
        if size is None or size > MAX_BYTES:
            return None, TOO_COSTLY
        try:
            return self._compile(text, is_slow=is_slow), None
        except GrammarError as error:
            return None, str(error)

    def _compile(self, text: str, *, is_slow: bool) -> Constraint:
        vocabulary = self._vocabulary.result()
        matcher = vocabulary.matcher(text)
        if matcher.is_error():
            raise GrammarError(reason(matcher.get_error()))

        def renew(said: Sequence[int]) -> LLMatcher:
            # All generations wait for this one, who waits for nobody here.
            return self._renewals.submit(vocabulary.matcher, text, said).result()

        made = Constraint(matcher, self._size, renew=None if is_slow else renew)
        # The first tokens cost most, and a grammar that allows nothing shows it only now.
        made.allowed()
        return made


async def _run(lane: ThreadPoolExecutor, job: Callable[[], _Result]) -> _Result:
    return await asyncio.get_running_loop().run_in_executor(lane, job)
