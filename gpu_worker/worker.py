"""All requests that run here: admits them, and gives their slots back when the engine let go."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor

import structlog

from fastrun.service.tracing import Tracer
from fastrun.v1.generation_pb2 import GenerateRequest
from fastrun.v1.scheduler_pb2 import SlotFreed
from gpu_worker.engine.protocol import Engine, EngineDeadError
from gpu_worker.frames import Events
from gpu_worker.generation import Generation, Model, Outcome
from gpu_worker.metrics import Metrics
from gpu_worker.slots import RefusedError, Slots
from gpu_worker.spans import tell

log = structlog.get_logger()


class Worker:
    """Runs requests on one engine, as many as there are slots."""

    def __init__(
        self,
        *,
        engine: Engine,
        model: Model,
        slots: Slots,
        executor: Executor,
        metrics: Metrics,
        tracer: Tracer,
        on_freed: Callable[[SlotFreed], None],
        on_dead: Callable[[EngineDeadError], None],
    ) -> None:
        """Wire the worker.

        Args:
            engine: what computes.
            model: what it computes.
            slots: who may run.
            executor: for prompts that take long to tokenize.
            metrics: counts what happens.
            tracer: told what requests have done, and when.
            on_freed: told of every lease that can never run again.
            on_dead: told when the engine cannot run anything any more.
        """
        self.engine = engine
        self.model = model
        self.slots = slots
        self.moved = 0
        """How many requests were told to go on elsewhere."""
        self._executor = executor
        self._metrics = metrics
        self._tracer = tracer
        self._on_freed = on_freed
        self._on_dead = on_dead
        self._running: dict[asyncio.Task[None], Generation] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def start(
        self, request: GenerateRequest, events: Events, *, on_end: Callable[[], object]
    ) -> Generation | None:
        """Run a request if it has a good lease and a slot is free; else tell why not.

        Args:
            request: what to generate.
            events: told what happens to it.
            on_end: called when the engine holds nothing of it any more.
        """
        generation = Generation(
            request, events, engine=self.engine, model=self.model, executor=self._executor
        )
        try:
            lease_id = self.slots.admit(request.lease)
        except RefusedError as refused:
            log.info(
                "request_refused", request_id=request.request_id, reason=refused.detail.message
            )
            self._metrics.refused()
            if refused.freed is not None:
                self._on_freed(refused.freed)
            events.failed(refused.detail)
            return None
        task = asyncio.create_task(self._run(lease_id, request, generation, on_end))
        self._running[task] = generation
        self._idle.clear()
        task.add_done_callback(self._forget)
        return generation

    @property
    def count(self) -> int:
        """How many requests run."""
        return len(self._running)

    async def idle(self) -> None:
        """Return when nothing runs."""
        await self._idle.wait()

    def close(self) -> None:
        """Let nothing begin from now on."""
        self.slots.close()

    def move(self) -> None:
        """Abort all that runs; each is told to go on elsewhere once the engine let go of it."""
        for generation in self._running.values():
            generation.move()

    def told_to_move(self) -> None:
        """Tell all that move and that the engine still holds."""
        for generation in self._running.values():
            generation.told_to_move()

    def fail_all(self, error: EngineDeadError) -> None:
        """Tell all that runs that the engine is gone."""
        for generation in self._running.values():
            generation.fail(error)

    async def _run(
        self,
        lease_id: str,
        request: GenerateRequest,
        generation: Generation,
        on_end: Callable[[], object],
    ) -> None:
        outcome = Outcome()
        try:
            outcome = await generation.run()
        finally:
            self._on_freed(self.slots.free(lease_id, outcome.usage))
            on_end()
            self._report(request.request_id, outcome)
            tell(self._tracer, request, outcome, time.monotonic())

    def _report(self, request_id: str, outcome: Outcome) -> None:
        self._metrics.ended(outcome)
        self.moved += outcome.end == "moved"
        usage = outcome.usage
        log.info(
            "request_finished",
            request_id=request_id,
            end=outcome.end,
            prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            first_token_ms=_ms(outcome.first_token_s),
            duration_ms=_ms(outcome.duration_s),
        )
        if isinstance(outcome.error, EngineDeadError):
            self._on_dead(outcome.error)

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not self._running:
            self._idle.set()


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
