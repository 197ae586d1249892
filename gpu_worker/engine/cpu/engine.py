"""The CPU engine: requests come from an event loop, steps run in a thread of their own."""

import asyncio
import time
from collections.abc import Callable
from collections.abc import Sequence as ReadOnlySequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import structlog

from gpu_worker.engine.cpu.batch import ContinuousBatch, lone_prompt
from gpu_worker.engine.cpu.blocks import BlockPool
from gpu_worker.engine.cpu.grammar_compiler import GrammarCompiler
from gpu_worker.engine.cpu.network import Network
from gpu_worker.engine.cpu.sampler import sample
from gpu_worker.engine.cpu.sequence import Sequence
from gpu_worker.engine.grammar import Grammar, GrammarError
from gpu_worker.engine.protocol import (
    EngineDeadError,
    EngineError,
    EngineStats,
    Finish,
    SamplingParams,
    StepOutput,
    Take,
    TokenLogprobs,
)
from gpu_worker.engine.token_stream import TokenStream

log = structlog.get_logger(__name__)

# Tokens that one step computes at most: a compromise between the prefill of one request and the
# delay between the tokens of all others. An abort waits for the running step, too.
TOKENS_PER_STEP = 128
STALLED_AFTER_S = 60.0
CLOSE_TIMEOUT_S = 30.0
WARM_UP_SALT = "warm-up"
# From some tokens on, a step wants the weights in another order than that of decoding.
PACKING_TOKENS = 16

_Value = TypeVar("_Value")


class _Stream(TokenStream):
    """A generation as the event loop sees it."""

    def __init__(self, sequence: Sequence, take: Take, released: asyncio.Future[None]) -> None:
        super().__init__(take)
        self.sequence = sequence
        self.released = released  # done when the step thread holds nothing of it any more


class _Token(NamedTuple):
    """One sampled token on its way from the step thread to the event loop."""

    stream: _Stream
    token_id: int
    finish: Finish | None
    logprobs: TokenLogprobs | None


class CpuEngine:
    """Continuous batching over a network with a paged KV cache."""

    name = "cpu"
    resumable = True
    resumes_grammars = True
    gpus = 0
    grows = False

    def __init__(
        self,
        network: Network,
        *,
        slots: int,
        context_length: int,
        blocks: int,
        grammars: GrammarCompiler | None = None,
        tokens_per_step: int = TOKENS_PER_STEP,
        stalled_after_s: float = STALLED_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the step thread.

        Args:
            network: the model, its KV cache allocated with that many blocks.
            slots: how many generations run at once.
            context_length: of the model, in tokens; less if the blocks hold less.
            blocks: size of the KV cache.
            grammars: for the model's vocabulary; the engine closes it. None refuses every grammar.
            tokens_per_step: how many tokens a step computes at most.
            stalled_after_s: how long a step may take before the engine counts as dead.
            clock: monotonic seconds.
        """
        self._network = network
        self._grammars = grammars
        self._slots = slots
        self._context_length = min(context_length, blocks * network.block_size)
        self._pool = BlockPool(blocks)
        self._batch = ContinuousBatch(
            self._pool,
            block_size=network.block_size,
            slots=slots,
            tokens_per_step=tokens_per_step,
        )
        self._stalled_after_s = stalled_after_s
        self._clock = clock
        # The event loop's side.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: set[_Stream] = set()
        self._accepted = 0
        self._accepted_tokens = 0
        self._death: str | None = None
        # The step thread's side; the loop only reads.
        self._stream_of: dict[Sequence, _Stream] = {}
        self._taken = 0
        self._taken_tokens = 0
        self._completion_tokens = 0
        self._step_began: float | None = None
        self._stopping = False
        # From the loop to the step thread: what to do between two steps.
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = Thread(target=self._run, name="cpu-engine", daemon=True)
        self._thread.start()

    @property
    def slots(self) -> int:
        """How many generations run at once."""
        return self._slots

    @property
    def context_length(self) -> int:
        """Prompt and completion together, in tokens."""
        return self._context_length

    def check(self, sampling: SamplingParams) -> None:
        """Take everything."""

    async def compile(self, grammar: Grammar) -> None:
        """Check a grammar and keep it ready."""
        await self._compiler().check(grammar)

    async def warm_up(self) -> None:
        """Generate two tokens that count nowhere; to be called before anything else is generated.

        The first inference compiles, and holds up the event loop for seconds. What more there is to
        do for longer prompts is done afterwards, before the first of them or with nobody waiting.

        Raises:
            EngineError: the engine does not generate.
        """
        # A longer prompt would take twice as long.
        greedy = SamplingParams(max_tokens=2, temperature=0)
        await self.generate([0], greedy, take=lambda _: False, cache_salt=WARM_UP_SALT)
        # Nothing runs, so that the step thread counts nothing.
        self._batch.forget_counts()
        self._completion_tokens = 0
        self._commands.put(self._pack)

    async def generate(
        self,
        token_ids: ReadOnlySequence[int],
        sampling: SamplingParams,
        *,
        take: Take,
        cache_salt: str,
        grammar: Grammar | None = None,
        resumed: int = 0,
    ) -> None:
        """Generate; max_tokens is cut to what the context holds."""
        constraint = None if grammar is None else await self._compiler().begin(grammar)
        prompt = np.array(token_ids, np.int64)
        self._check(prompt, sampling, resumed)
        room = self._context_length - len(prompt)
        sequence = Sequence(
            prompt,
            sampling,
            max_tokens=min(sampling.max_tokens, room),
            cache_salt=cache_salt,
            block_size=self._network.block_size,
            restriction=constraint,
            resumed=resumed,
        )
        if sequence.ended_before is not None:
            take(StepOutput([], finish=sequence.ended_before))
            return
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._streams.clear()
        stream = _Stream(sequence, take, loop.create_future())
        self._streams.add(stream)
        self._accepted += 1
        self._accepted_tokens += sequence.length
        self._commands.put(partial(self._begin, stream))
        try:
            await stream.over()
        finally:
            if stream in self._streams:
                self._commands.put(partial(self._abort, stream))
                await asyncio.shield(stream.released)

    def stats(self) -> EngineStats:
        """Read the counters."""
        batch = self._batch
        return EngineStats(
            running=batch.running,
            waiting=batch.waiting + self._accepted - self._taken,
            kv_blocks_used=self._pool.held,
            kv_blocks_total=self._pool.size,
            prompt_tokens=batch.prompt_tokens,
            cached_tokens=batch.cached_tokens,
            completion_tokens=self._completion_tokens,
            preemptions=batch.preemptions,
            prefill_tokens=batch.prefill_tokens + self._accepted_tokens - self._taken_tokens,
            context_tokens=batch.context_tokens,
        )

    def health(self) -> None:
        """Return if steps are made or none is wanted."""
        if self._death is not None:
            raise EngineDeadError(self._death)
        if not self._thread.is_alive():
            raise EngineDeadError("the engine's thread has ended")
        began = self._step_began
        if began is not None and (seconds := self._clock() - began) > self._stalled_after_s:
            raise EngineDeadError(f"a step of the engine has not ended for {seconds:.0f} s")

    async def close(self) -> None:
        """Abort what runs, end the thread and free the model; the second call does nothing."""
        if self._death is None:
            self._death = "the engine was closed"
        self._commands.put(self._stop)
        if self._grammars is not None:
            self._grammars.close()
        await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)
        self._fail_all(self._death)
        self._network.close()

    def _compiler(self) -> GrammarCompiler:
        if self._death is not None:
            raise EngineDeadError(self._death)
        if self._grammars is None:
            raise GrammarError("this model names no token that ends a turn, which grammars need")
        return self._grammars

    def _check(self, prompt: npt.NDArray[np.int64], sampling: SamplingParams, resumed: int) -> None:
        """Let nothing reach the network that could harm other requests."""
        if self._death is not None:
            raise EngineDeadError(self._death)
        least = 0 if resumed else 1  # that may be the whole of it
        if len(prompt) <= resumed or sampling.max_tokens < least:
            raise EngineError("a generation needs a prompt and max_tokens of at least 1")
        if len(prompt) + least > self._context_length:
            raise EngineError(
                f"the prompt has {len(prompt)} tokens, and the engine holds "
                f"{self._context_length} with the completion"
            )
        if prompt.min() < 0 or prompt.max() >= self._network.vocabulary:
            raise EngineError("the prompt has a token id that is not in the model's vocabulary")

    # What follows down to _tell runs in the step thread.

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._obey()
                if self._stream_of and not self._stopping:
                    self._step_began = self._clock()
                    self._step()
                    self._step_began = None
        except Exception as error:
            log.exception("engine_died")
            self._tell(self._fail_all, f"the engine's step failed: {error}")

    def _obey(self) -> None:
        """Do what the loop asked for; with nothing to run, wait until it asks."""
        if not self._stream_of:
            self._commands.get()()
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            command()

    def _begin(self, stream: _Stream) -> None:
        self._stream_of[stream.sequence] = stream
        self._batch.add(stream.sequence)
        self._taken += 1
        self._taken_tokens += stream.sequence.length

    def _abort(self, stream: _Stream) -> None:
        self._drop(stream.sequence)
        self._tell(self._release, stream)

    def _stop(self) -> None:
        self._stopping = True

    def _pack(self) -> None:
        """Compute a prompt that nobody has sent, for which weights are packed once and for all."""
        block, size = self._pool.spare, self._network.block_size
        if block is None:
            return
        self._step_began = self._clock()
        self._network.forward(
            [lone_prompt(min(PACKING_TOKENS, size), block=block, block_size=size)]
        )
        self._step_began = None

    def _step(self) -> None:
        rows = self._batch.plan()
        logits = self._network.forward(rows)
        self._batch.commit(rows)
        sequences = [row.sequence for row in rows if row.samples]
        tokens = []
        for sequence, choice in zip(
            sequences, sample(logits, [s.sampler for s in sequences]), strict=True
        ):
            stream = self._stream_of[sequence]
            if isinstance(choice, Exception):
                self._drop(sequence)
                self._tell(self._fail, (stream, choice))
                continue
            finish = sequence.append(choice.token_id)
            tokens.append(_Token(stream, choice.token_id, finish, choice.logprobs))
            if finish is not None:
                self._drop(sequence)
        self._completion_tokens += len(tokens)
        if tokens:
            self._tell(self._deliver, tokens)

    def _drop(self, sequence: Sequence) -> None:
        self._batch.remove(sequence)
        self._stream_of.pop(sequence, None)

    def _tell(self, callback: Callable[[_Value], None], value: _Value) -> None:
        """Call back in the event loop; if it is gone, so are all who wanted anything."""
        assert self._loop is not None, "there is nothing to tell before the first generation"
        try:
            self._loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            for sequence in self._stream_of:
                self._batch.remove(sequence)
            self._stream_of.clear()

    # What follows runs in the event loop.

    def _deliver(self, tokens: list[_Token]) -> None:
        for token in tokens:
            token.stream.cached_tokens = token.stream.sequence.cached_tokens or 0
            logprobs = None if token.logprobs is None else [token.logprobs]
            token.stream.add([token.token_id], token.finish, logprobs)
            if token.finish is not None:
                self._release(token.stream)

    def _release(self, stream: _Stream) -> None:
        """Note that the step thread holds nothing of a stream any more."""
        self._streams.discard(stream)
        if not stream.released.done():
            stream.released.set_result(None)

    def _fail(self, failed: tuple[_Stream, Exception]) -> None:
        stream, error = failed
        if not isinstance(error, GrammarError):
            log.error("sampling_failed", exc_info=error)
            error = EngineError(f"this request could not be sampled: {error}")
        stream.fail(error)
        self._release(stream)

    def _fail_all(self, reason: str) -> None:
        self._death = reason
        for stream in list(self._streams):
            stream.fail(EngineDeadError(reason))
            self._release(stream)
