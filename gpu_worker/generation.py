"""One running request, from GenerateRequest to the last of its events.

Tokens go one way: the engine's step -> reply -> frame.
"""

import asyncio
import functools
import time
from collections.abc import Callable
from concurrent.futures import Executor

import msgspec
import structlog

from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import FinishReason, GenerateRequest, Usage
from fastrun.v1.worker_pb2 import ModelCard
from gpu_worker import prompt
from gpu_worker.chat import InvalidRequestError
from gpu_worker.dialect.chat_template import PromptEncoder
from gpu_worker.dialect.profile import Profile
from gpu_worker.engine.grammar import GrammarError
from gpu_worker.engine.protocol import (
    Engine,
    EngineDeadError,
    EngineError,
    StepOutput,
    UnsupportedError,
)
from gpu_worker.frames import Events
from gpu_worker.prompt import Prompt, SamplingDefaults
from gpu_worker.reply import Reply

log = structlog.get_logger()

# Longer requests are templated and tokenized in a thread, so that no heartbeat waits for them.
INLINE_BYTES = 8 << 10
# So long an answer that a stop text has ended is not told to be complete, while the engine makes
# its step: told before, its client could ask again and find the slot, and itself, still busy.
LET_GO_S = 0.1

END_NAMES = {
    FinishReason.FINISH_REASON_STOP: "stop",
    FinishReason.FINISH_REASON_LENGTH: "length",
    FinishReason.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model as requests meet it, beside the engine that computes it."""

    card: ModelCard
    encoder: PromptEncoder
    profile: Profile
    token_bytes: Callable[[int], bytes]
    stop_token_ids: tuple[int, ...]
    defaults: SamplingDefaults = SamplingDefaults()


class Outcome(msgspec.Struct, kw_only=True):
    """What a request came to."""

    # None if it never reached the engine. The completion counts every token up to the one that
    # ended the text, that one included, be it the model's end token or part of a stop text.
    usage: Usage | None = None
    # `stop`, `length`, `tool_calls`, `aborted`, `refused`, `engine_failed`, `crashed`, or at the
    # deadline of a drain `moved` or, if it cannot go on elsewhere, `drained`.
    end: str = "aborted"
    error: Exception | None = None
    # Since it was begun, as are the others: when the engine was given its prompt.
    prefill_s: float | None = None
    first_token_s: float | None = None
    # From one token to the next on average; None where it was ended, or had less than two.
    inter_token_s: float | None = None
    duration_s: float = 0.0


class Generation:
    """Runs one request on the engine and tells its events.

    A failure is the last event of this request and of nothing else.
    """

    def __init__(
        self,
        request: GenerateRequest,
        events: Events,
        *,
        engine: Engine,
        model: Model,
        executor: Executor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._events = events
        self._engine = engine
        self._model = model
        self._executor = executor
        self._clock = clock
        self._task: asyncio.Task[object] | None = None
        self._began_at = clock()
        self._ending = False
        self._moving = False
        self._resumable = False
        self._told = False
        self._reply: Reply | None = None
        self._outcome = Outcome()
        events.on_fault = self._untold

    def abort(self) -> None:
        """End early, with Finished{ABORTED}; does nothing once the generation ends by itself."""
        if self._ending:
            return
        self._ending = True
        if self._task is not None:
            self._task.cancel()

    def move(self) -> None:
        """End early, telling that it goes on elsewhere; in the same manner as abort()."""
        if not self._ending:
            self._moving = True
            self.abort()

    def told_to_move(self) -> None:
        """Tell it now if it moves, or that it is complete, however long the engine still holds it.

        Nothing that the engine makes from here on is told any more.
        """
        if self._told_complete() or not self._moving:
            return
        if self._resumable or self._outcome.first_token_s is None:
            text = "this worker stops: go on at another one"
            self._fail(ErrorReason.ERROR_REASON_MOVED, text, "moved")
        else:
            text = "this worker stops, and its engine cannot hand over what it has begun"
            self._fail(ErrorReason.ERROR_REASON_DRAINING, text, "drained")

    def fail(self, error: EngineError) -> None:
        """Tell the failure now, however long the engine still holds the request."""
        self._engine_failed(error)
        self.abort()

    async def run(self) -> Outcome:
        """Return when the last event is told and the engine holds nothing of the request."""
        self._task = asyncio.current_task()
        try:
            await self._run()
        except Exception as error:
            # A bug of ours is this request's end alone.
            self._outcome.error = error
            log.exception("request_crashed", request_id=self._request.request_id)
            fault = internal().detail
            self._fail(fault.reason, fault.message, "crashed")
        self._outcome.usage = self._reply.usage if self._reply else None
        self._outcome.duration_s = self._clock() - self._began_at
        self._outcome.inter_token_s = self._inter_token_s()
        return self._outcome

    async def _run(self) -> None:
        try:
            if self._ending:
                raise asyncio.CancelledError
            await self._decode(await self._prompt())
        except asyncio.CancelledError:
            self.told_to_move()
            self._finish(FinishReason.FINISH_REASON_ABORTED, "aborted")
        except ServiceError as error:
            self._fail(error.detail.reason, error.detail.message, "refused")
        except (GrammarError, UnsupportedError) as error:
            # Found out while generating: it would be the same on every worker.
            self._fail(ErrorReason.ERROR_REASON_INVALID_REQUEST, str(error), "refused")
        except EngineError as error:
            self._outcome.error = error
            self._engine_failed(error)

    def _inter_token_s(self) -> float | None:
        """Counted at the end, since a look at the clock for each token would cost each token."""
        outcome = self._outcome
        if outcome.usage is None or outcome.first_token_s is None:
            return None
        tokens = outcome.usage.completion_tokens - len(self._request.resume_token_ids)
        if tokens < 2 or outcome.end not in END_NAMES.values():
            return None
        return (outcome.duration_s - outcome.first_token_s) / (tokens - 1)

    async def _prompt(self) -> Prompt:
        request, model = self._request, self._model
        prompt.check(request, card=model.card)
        make = functools.partial(
            prompt.make,
            request,
            model.encoder,
            model.profile,
            defaults=model.defaults,
            context_length=model.card.context_length,
            stop_token_ids=model.stop_token_ids,
        )
        if prompt.size(request) <= INLINE_BYTES:
            return make()
        return await asyncio.get_running_loop().run_in_executor(self._executor, make)

    async def _decode(self, prompt: Prompt) -> None:
        try:
            self._engine.check(prompt.sampling)
            if prompt.grammar is not None:
                await self._engine.compile(prompt.grammar)
        except (GrammarError, UnsupportedError) as error:
            raise InvalidRequestError(str(error)) from error
        self._resumable = self._engine.resumable and (
            prompt.grammar is None or self._engine.resumes_grammars
        )
        reply = self._reply = Reply(self._request, prompt, self._events, self._model.token_bytes)
        self._events.accepted(reply.prompt_tokens, resumable=self._resumable)
        log.info(
            "request_started",
            request_id=self._request.request_id,
            prompt_tokens=reply.prompt_tokens,
            max_tokens=prompt.sampling.max_tokens,
            resumed_tokens=len(self._request.resume_token_ids),
        )
        if self._request.resume_token_ids:
            reply.replay(self._request.resume_token_ids)
        if reply.reason is None:
            await self._go_on(prompt, reply)
        self._ending = True
        if not self._told_complete():
            raise EngineError("the engine ended this request without a reason")

    async def _go_on(self, prompt: Prompt, reply: Reply) -> None:
        """Generate what has not been yet."""
        self._outcome.prefill_s = self._clock() - self._began_at
        resumed = self._request.resume_token_ids
        left = max(0, prompt.sampling.max_tokens - len(resumed))
        await self._engine.generate(
            [*prompt.token_ids, *resumed],
            msgspec.structs.replace(prompt.sampling, max_tokens=left),
            take=functools.partial(self._take, reply),
            cache_salt=self._request.cache_salt,
            grammar=prompt.grammar,
            resumed=len(resumed),
        )

    def _take(self, reply: Reply, step: StepOutput) -> bool:
        """Pass on what one step brought; True once nothing more is to be told."""
        if self._ending:
            return True
        if self._outcome.first_token_s is None:
            self._outcome.first_token_s = self._clock() - self._began_at
            reply.cached_tokens = step.cached_tokens
        # Also if this raises: an abort would not wait any more until the engine lets go.
        self._ending = True
        reply.take(step)
        # If it ends, all is told: what comes while the engine lets go is late.
        self._ending = reply.reason is not None
        if self._ending and step.finish is None:
            asyncio.get_running_loop().call_later(LET_GO_S, self._told_complete)
        return self._ending

    def _finish(self, reason: FinishReason.ValueType, end: str) -> None:
        if not self._told:
            self._events.finished(reason, self._reply.usage if self._reply else Usage())
            self._told = True
            self._outcome.end = end

    def _told_complete(self) -> bool:
        """Tell how the reply ended, if it has by itself: then nothing can fail it any more."""
        if self._reply is None or self._reply.reason is None:
            return False
        self._finish(self._reply.reason, END_NAMES[self._reply.reason])
        return True

    def _engine_failed(self, error: EngineError) -> None:
        if not self._told_complete():
            self._fail(_reason(error), str(error), "engine_failed")

    def _untold(self, error: Exception) -> None:
        """End, and tell of a fault of ours in place of what cannot be sent."""
        log.error("request_crashed", request_id=self._request.request_id, exc_info=error)
        self._outcome.error = error
        self._told = True
        self._outcome.end = "crashed"
        self._events.failed(internal().detail)
        self.abort()

    def _fail(self, reason: ErrorReason.ValueType, message: str, end: str) -> None:
        if not self._told:
            self._told = True
            self._outcome.end = end
            self._events.failed(ServiceError(reason, message).detail)


def internal() -> ServiceError:
    """Return what is told of a fault of ours."""
    return ServiceError(ErrorReason.ERROR_REASON_INTERNAL, "internal error of the worker")


def _reason(error: EngineError) -> ErrorReason.ValueType:
    if isinstance(error, EngineDeadError):
        return ErrorReason.ERROR_REASON_ENGINE_DIED
    return ErrorReason.ERROR_REASON_ENGINE_FAILED
