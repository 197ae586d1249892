"""The adapter: requests come from an event loop, and TensorRT-LLM computes in threads or processes.

What it is given was checked before, for some of it can bring the engine down: no more requests than
slots, none that it cannot hold, no parameter that it would ignore. What comes back is read with a
cursor. What raises is sorted: it was the request, or it was the end of the engine.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog

from gpu_worker.engine.grammar import Grammar, GrammarError
from gpu_worker.engine.protocol import (
    EngineDeadError,
    EngineError,
    EngineStats,
    Finish,
    SamplingParams,
    StepOutput,
    Take,
)
from gpu_worker.engine.tensorrt_llm.batch import Batch
from gpu_worker.engine.tensorrt_llm.guides import Guides
from gpu_worker.engine.tensorrt_llm.library import Library
from gpu_worker.engine.tensorrt_llm.request import Request
from gpu_worker.engine.tensorrt_llm.sampling import check
from gpu_worker.engine.tensorrt_llm.watch import Limits, Progress, Watch, fatal_error

log = structlog.get_logger(__name__)

SHUTDOWN_LIMIT_S = 10.0
WARM_UP_LIMIT_S = 300.0
WARM_UP_SALT = "warm-up"


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What the adapter has to know of the loaded model."""

    context_length: int  # prompt and completion together, in tokens; no more than the cache holds
    vocabulary: int  # token ids are below it
    stop_token_ids: tuple[int, ...]  # what ends a turn


class TensorRtLlmEngine:
    """A ``tensorrt_llm.LLM`` behind the Engine protocol."""

    name = "tensorrt-llm"
    resumable = True
    # The library begins a guide with the request: it cannot be led to where it stood.
    resumes_grammars = False
    grows = True

    def __init__(
        self,
        llm: Any,
        library: Library,
        model: Model,
        *,
        slots: int,
        gpus: int,
        guides: Guides | None,
        leave: Callable[[int], None],
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take over a loaded model, in the event loop that will ask for generations.

        Args:
            llm: a ``tensorrt_llm.LLM``, made for ``slots`` + SPARE requests at once.
            library: what it was made by.
            model: what was loaded.
            slots: how many generations run at once.
            gpus: how many it was loaded on.
            guides: for grammars; closed with the engine. None refuses every grammar.
            leave: ends the process at once, with a status; called from any thread.
            limits: how long what may take.
            clock: monotonic seconds.
        """
        self._llm = llm
        self._features = library.features
        self._model = model
        self._slots = slots
        self._gpus = gpus
        self._guides = guides
        self._leave = leave
        self._last_words_s = limits.last_words_s
        self._loop = asyncio.get_running_loop()
        self._death: str | None = None
        self._closed = False
        self._progress = Progress(clock=clock)
        self._batch = Batch(
            llm,
            library,
            slots=slots,
            progress=self._progress,
            abort_limit_s=limits.abort_s,
            on_death=self._die,
        )
        self._watch = Watch(
            llm,
            self._progress,
            limits=limits,
            on_death=self._found_dead,
            clock=clock,
        )

    @property
    def slots(self) -> int:
        """How many generations run at once."""
        return self._slots

    @property
    def gpus(self) -> int:
        """How many GPUs the model was loaded on."""
        return self._gpus

    @property
    def context_length(self) -> int:
        """Prompt and completion together, in tokens."""
        return self._model.context_length

    def check(self, sampling: SamplingParams) -> None:
        """Refuse what the installed version would ignore."""
        check(sampling, self._features)

    async def compile(self, grammar: Grammar) -> None:
        """Try a grammar out and keep it ready."""
        await self._guide(grammar)

    async def warm_up(self) -> None:
        """Generate a token, so that the first request finds all kernels compiled.

        Raises:
            EngineError: the engine does not answer.
        """
        some = SamplingParams(
            max_tokens=1, temperature=0, stop_token_ids=self._model.stop_token_ids
        )
        prompt = [1] * min(16, self._model.context_length - 1)
        self._progress.patience_s = WARM_UP_LIMIT_S  # some kernels are compiled when first used
        try:
            async with asyncio.timeout(WARM_UP_LIMIT_S):
                await self.generate(prompt, some, take=lambda _: False, cache_salt=WARM_UP_SALT)
        except TimeoutError as error:
            raise EngineError(f"no token came within {WARM_UP_LIMIT_S:.0f} s") from error
        finally:
            self._progress.patience_s = 0.0
        self._batch.forget_counts()

    async def generate(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        take: Take,
        cache_salt: str,
        grammar: Grammar | None = None,
        resumed: int = 0,
    ) -> None:
        """Generate; max_tokens is cut to what the context holds."""
        left = min(sampling.max_tokens, self._model.context_length - len(token_ids))
        if 0 < resumed < len(token_ids) and grammar is None:
            stopped = token_ids[-1] in sampling.stop_token_ids
            if stopped or left == 0:
                take(StepOutput([], finish=Finish.STOP if stopped else Finish.LENGTH))
                return
        self._check(token_ids, sampling, resumed)
        if grammar is not None and resumed:
            raise GrammarError("an output that is held to a grammar cannot go on elsewhere")
        guide = None if grammar is None else await self._guide(grammar)
        request = Request(
            token_ids,
            msgspec.structs.replace(sampling, max_tokens=left),
            take,
            cache_salt=cache_salt,
            guide=guide,
            resumed=resumed,
        )
        self._alive()
        self._batch.add(request)
        try:
            await request.stream.over()
        finally:
            await self._batch.release(request)

    def stats(self) -> EngineStats:
        """Read the counters; those of the cache are a step or two old."""
        return self._batch.stats()

    def health(self) -> None:
        """Return unless the engine has been found dead."""
        self._alive()

    async def close(self) -> None:
        """Abort what runs and shut the library down; the process must end soon after."""
        if self._closed:
            return
        self._closed = True
        self._watch.close()
        self._batch.abort_all()
        died_before = self._death is not None
        self._fail_all("the engine was closed")
        if self._guides is not None:
            self._guides.close()
        # A dead executor is never joined: its ranks answer nobody.
        if not died_before and fatal_error(self._llm) is None:
            await self._shut_down()
        # What the library has registered for the end of the process may hang, too.
        self._leave_soon(1 if died_before else 0)

    def _alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(self._death)

    def _check(self, token_ids: Sequence[int], sampling: SamplingParams, resumed: int) -> None:
        """Let nothing reach the engine that could harm other requests."""
        self._alive()
        self.check(sampling)
        if len(token_ids) <= resumed:
            raise EngineError("a generation needs a prompt")
        if len(token_ids) >= self._model.context_length:
            raise EngineError(
                f"the prompt has {len(token_ids)} tokens, and the engine holds "
                f"{self._model.context_length} with the completion"
            )
        if min(token_ids) < 0 or max(token_ids) >= self._model.vocabulary:
            raise EngineError("the prompt has a token id that is not in the model's vocabulary")

    async def _guide(self, grammar: Grammar) -> str:
        self._alive()
        if self._guides is None:
            raise GrammarError("this model names no token that ends a turn, which grammars need")
        return await self._guides.text(grammar)

    # Life and death.

    def _found_dead(self, reason: str) -> None:
        """Hear of the death in the watching thread, while the event loop may hang as well."""
        self._leave_soon()
        try:
            self._loop.call_soon_threadsafe(self._fail_all, f"the engine is dead: {reason}")
        except RuntimeError:
            log.warning("engine_died_without_loop", reason=reason)

    def _die(self, reason: str) -> None:
        if self._death is None and not self._closed:
            self._leave_soon()
            self._fail_all(reason)

    def _leave_soon(self, status: int = 1) -> None:
        """See to it that the process ends, even if nothing else of it moves."""
        timer = threading.Timer(self._last_words_s, self._leave, (status,))
        timer.daemon = True
        timer.start()

    def _fail_all(self, reason: str) -> None:
        if self._death is None:
            self._death = reason
        self._watch.close()
        self._batch.fail_all(self._death)

    async def _shut_down(self) -> None:
        thread = threading.Thread(target=self._llm.shutdown, name="engine-shutdown", daemon=True)
        thread.start()
        await asyncio.to_thread(thread.join, SHUTDOWN_LIMIT_S)
        if thread.is_alive():
            log.warning("engine_shutdown_hangs")
