"""The adapter: requests come from an event loop, and TensorRT-LLM computes in threads or processes.

What it is given was checked before, for some of it can bring the engine down: no more requests than
slots, none that it cannot hold, no parameter that it would ignore. What comes back is read with a
cursor. What raises is sorted: it was the request, or it was the end of the engine.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import msgspec
import structlog

from gpu_worker.engine.grammar import Grammar, GrammarError
from gpu_worker.engine.protocol import (
    EngineDeadError,
    EngineError,
    EngineStats,
    SamplingParams,
    StepOutput,
    UnsupportedError,
)
from gpu_worker.engine.tensorrt_llm import faults
from gpu_worker.engine.tensorrt_llm.guides import Guides
from gpu_worker.engine.tensorrt_llm.iterations import Iterations
from gpu_worker.engine.tensorrt_llm.library import Library
from gpu_worker.engine.tensorrt_llm.request import Request
from gpu_worker.engine.tensorrt_llm.sampling import check, keywords
from gpu_worker.engine.tensorrt_llm.watch import Limits, Progress, Watch, fatal_error

log = structlog.get_logger(__name__)

# Requests that the engine may hold beyond the slots: those that it has been told to abort and has
# not confirmed. A full engine has been seen to hang.
SPARE = 8
ABORT_LIMIT_S = 5.0
SHUTDOWN_LIMIT_S = 10.0
# From death to the end of the process, whatever hangs: what runs is told in the meantime.
LAST_WORDS_LIMIT_S = 4.5
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

    def __init__(
        self,
        llm: Any,
        library: Library,
        model: Model,
        *,
        slots: int,
        guides: Guides | None,
        leave: Callable[[int], None],
        limits: Limits | None = None,
        abort_limit_s: float = ABORT_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take over a loaded model, in the event loop that will ask for generations.

        Args:
            llm: a ``tensorrt_llm.LLM``, made for ``slots`` + SPARE requests at once.
            library: what it was made by.
            model: what was loaded.
            slots: how many generations run at once.
            guides: for grammars; closed with the engine. None refuses every grammar.
            leave: ends the process at once, with a status; called from any thread.
            limits: how long what may take before the engine counts as dead.
            abort_limit_s: after it, the slot of an aborted request is free though the engine has
                not confirmed.
            clock: monotonic seconds.
        """
        self._llm = llm
        self._library = library
        self._model = model
        self._slots = slots
        self._guides = guides
        self._leave = leave
        self._abort_limit_s = abort_limit_s
        self._loop = asyncio.get_running_loop()
        self._running: set[Request] = set()
        self._waiting: deque[Request] = deque()
        self._abandoned: set[Request] = set()
        self._death: str | None = None
        self._closed = False
        self._prompt_tokens = self._cached_tokens = self._completion_tokens = 0
        self._iterations = Iterations()
        self._reader: asyncio.Task[None] | None = None
        self._progress = Progress(clock=clock)
        self._watch = Watch(
            llm,
            self._progress,
            limits=limits or Limits(),
            on_death=self._found_dead,
            clock=clock,
        )

    @property
    def slots(self) -> int:
        """How many generations run at once."""
        return self._slots

    @property
    def context_length(self) -> int:
        """Prompt and completion together, in tokens."""
        return self._model.context_length

    def check(self, sampling: SamplingParams) -> None:
        """Refuse what the installed version would ignore."""
        check(sampling, self._library.features)

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
        try:
            async with asyncio.timeout(WARM_UP_LIMIT_S):
                async for _ in self.generate(prompt, some, cache_salt=WARM_UP_SALT):
                    pass
        except TimeoutError as error:
            raise EngineError(f"no token came within {WARM_UP_LIMIT_S:.0f} s") from error
        self._prompt_tokens = self._cached_tokens = self._completion_tokens = 0

    async def generate(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        cache_salt: str,
        grammar: Grammar | None = None,
        resumed: int = 0,
    ) -> AsyncGenerator[StepOutput, None]:
        """Generate; max_tokens is cut to what the context holds."""
        self._check(token_ids, sampling, resumed)
        if grammar is not None and resumed:
            raise GrammarError("an output that is held to a grammar cannot go on elsewhere")
        guide = None if grammar is None else await self._guide(grammar)
        room = self._model.context_length - len(token_ids)
        request = Request(
            token_ids,
            msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens, room)),
            cache_salt=cache_salt,
            guide=guide,
            resumed=resumed,
        )
        self._alive()
        self._waiting.append(request)
        self._admit()
        try:
            while True:
                output = await request.stream.next()
                yield output
                if output.finish is not None:
                    return
        finally:
            await self._release(request)

    def stats(self) -> EngineStats:
        """Read the counters; those of the cache are a step or two old."""
        running = [request for request in self._running if request.told]
        begun = (*self._waiting, *self._running)
        in_flight = self._running or self._abandoned
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_blocks_used=self._iterations.kv_blocks_used if in_flight else 0,
            kv_blocks_total=self._iterations.kv_blocks_total,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            completion_tokens=self._completion_tokens,
            preemptions=0,  # the library does not tell of any
            prefill_tokens=sum(request.prompt_tokens for request in begun if not request.told),
            context_tokens=sum(request.prompt_tokens + request.told for request in running),
        )

    def health(self) -> None:
        """Return unless the engine has been found dead."""
        self._alive()

    async def close(self) -> None:
        """Abort what runs and shut the library down; the process must end soon after."""
        if self._closed:
            return
        self._closed = True
        self._watch.close()
        for request in self._running:
            self._abort(request)
        died_before = self._death is not None
        self._fail_all("the engine was closed")
        if self._reader is not None:
            self._reader.cancel()
        if self._guides is not None:
            self._guides.close()
        # A dead executor is never joined: its ranks answer nobody.
        if not died_before and fatal_error(self._llm) is None:
            await self._shut_down()
        # What the library has registered for the end of the process may hang, too.
        self._leave_soon(0)

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

    # From a slot to the end of a request.

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._slots and self._death is None:
            request = self._waiting.popleft()
            try:
                request.result = self._submit(request)
            except Exception as error:  # noqa: BLE001 - sorted into those of the request and others
                self._fail(request, error, submitting=True)
                continue
            self._running.add(request)
            self._progress.began()
            request.reader = asyncio.create_task(self._read(request), name="generation")

    def _submit(self, request: Request) -> Any:
        guide = None
        if request.guide is not None:
            guide = self._library.guided_decoding_params(grammar=request.guide)
        chosen = keywords(
            request.sampling,
            self._library.features,
            prompt_tokens=request.prompt_tokens - request.resumed,
            resumed=request.resumed,
            guide=guide,
        )
        # By keyword alone: new parameters have come in between. A new SamplingParams each time: the
        # library writes to it.
        return self._llm.generate_async(
            inputs={"prompt_token_ids": request.token_ids},
            sampling_params=self._library.sampling_params(**chosen),
            streaming=True,
            cache_salt=request.cache_salt or None,
        )

    async def _read(self, request: Request) -> None:
        """Read a result to its end, whoever waits for it or has left."""
        try:
            async for _ in request.result:
                self._progress.moved()
                self._read_statistics()
                if request.take():
                    self._count_prompt(request)
                self._completion_tokens += request.new_tokens
            if not request.ended:
                raise EngineError("the engine ended this request without a reason")
        except EngineError as error:
            request.stream.fail(error)
            self._abort(request)  # it has not ended it: we have
        except Exception as error:  # noqa: BLE001 - sorted into those of the request and others
            self._fail(request, error, submitting=False)
        finally:
            self._let_go(request)

    def _count_prompt(self, request: Request) -> None:
        self._prompt_tokens += request.prompt_tokens
        self._cached_tokens += request.stream.cached_tokens

    def _fail(self, request: Request, error: Exception, *, submitting: bool) -> None:
        fault = faults.sort(error, submitting=submitting, request_error=self._library.request_error)
        if fatal_error(self._llm) is not None and not isinstance(fault, EngineDeadError):
            fault = EngineDeadError("the engine's executor has failed")
        request.stream.fail(fault)
        if isinstance(fault, EngineDeadError):
            self._die(str(fault))
        elif isinstance(fault, UnsupportedError):
            # What is let through to the engine should have been checked before.
            log.warning("engine_refused_request", kind=type(error).__name__)

    def _abort(self, request: Request) -> None:
        """Abort once, and only what has not ended: the library never forgets the others."""
        try:
            request.abort()
        except Exception as error:  # noqa: BLE001 - an engine that cannot abort is none
            self._die(f"the engine cannot abort: {type(error).__name__}")

    async def _release(self, request: Request) -> None:
        """Return when the engine holds nothing of a request, or has not said so for too long."""
        if request in self._waiting:
            self._waiting.remove(request)
        if request.reader is None or request.reader.done():
            return
        self._abort(request)
        await asyncio.wait([request.reader], timeout=self._abort_limit_s)
        if not request.reader.done() and self._death is None:
            self._abandon(request)

    def _abandon(self, request: Request) -> None:
        self._running.discard(request)
        self._abandoned.add(request)
        log.warning("engine_holds_aborted_request", count=len(self._abandoned))
        if len(self._abandoned) > SPARE:
            self._die(f"the engine has not ended {len(self._abandoned)} aborted requests")
        self._admit()

    def _let_go(self, request: Request) -> None:
        """Note that the engine holds nothing of a request any more."""
        self._running.discard(request)
        self._abandoned.discard(request)
        self._progress.ended()
        self._admit()

    # Life and death.

    def _read_statistics(self) -> None:
        """Begin to read statistics, which there are none of before a first token."""
        if self._reader is None:
            reading = self._iterations.read(self._llm, on_progress=self._progress.moved)
            self._reader = asyncio.create_task(reading, name="engine-statistics")

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
        timer = threading.Timer(LAST_WORDS_LIMIT_S, self._leave, (status,))
        timer.daemon = True
        timer.start()

    def _fail_all(self, reason: str) -> None:
        if self._death is None:
            self._death = reason
        self._watch.close()
        for request in (*self._running, *self._waiting):
            request.stream.fail(EngineDeadError(self._death))
        self._waiting.clear()
        for request in self._running:
            if request.reader is not None:
                request.reader.cancel()

    async def _shut_down(self) -> None:
        thread = threading.Thread(target=self._llm.shutdown, name="engine-shutdown", daemon=True)
        thread.start()
        await asyncio.to_thread(thread.join, SHUTDOWN_LIMIT_S)
        if thread.is_alive():
            log.warning("engine_shutdown_hangs")
