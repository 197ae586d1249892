"""How the worker is, for its heartbeats and metrics."""

import time
from collections.abc import Callable

from fastrun.v1.scheduler_pb2 import Heartbeat, WorkerState
from gpu_worker.engine.protocol import Engine
from gpu_worker.metrics import Metrics
from gpu_worker.slots import Slots


class Vitals:
    """Reads engine and slots."""

    def __init__(
        self,
        engine: Engine,
        slots: Slots,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = WorkerState.WORKER_STATE_SERVING
        self.engine_dead = False
        self._engine = engine
        self._slots = slots
        self._metrics = metrics
        self._clock = clock
        self._measured_at = clock()
        self._measured_tokens = 0
        self._tokens_per_s = 0.0

    def check(self) -> None:
        """Update metrics and the rate; to be called each second.

        Raises:
            EngineDeadError: the engine makes no progress.
        """
        stats = self._engine.stats()
        self._metrics.observe(stats, slots_in_use=self._slots.in_use)
        now = self._clock()
        if (elapsed := now - self._measured_at) > 0:
            self._tokens_per_s = (stats.completion_tokens - self._measured_tokens) / elapsed
            self._measured_at, self._measured_tokens = now, stats.completion_tokens
        self._engine.health()
        self._metrics.healthy(is_healthy=True)

    def heartbeat(self, *, moved: int) -> Heartbeat:
        """Return what schedulers are told.

        Args:
            moved: how many requests were told to go on elsewhere.
        """
        stats = self._engine.stats()
        return Heartbeat(
            running_lease_ids=self._slots.running_ids,
            state=self.state,
            waiting=stats.waiting,
            kv_blocks_used=stats.kv_blocks_used,
            kv_blocks_total=stats.kv_blocks_total,
            tokens_per_second=self._tokens_per_s,
            prompt_tokens=stats.prompt_tokens,
            cached_tokens=stats.cached_tokens,
            prefill_tokens=stats.prefill_tokens,
            context_tokens=stats.context_tokens,
            moved=moved,
            engine_dead=self.engine_dead,
        )
