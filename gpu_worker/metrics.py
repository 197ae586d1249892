"""What a worker counts."""

from prometheus_client import Counter, Gauge, Histogram

from fastrun.service.metrics import new_registry
from gpu_worker.engine.protocol import EngineStats
from gpu_worker.generation import Outcome

_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """The worker's metrics, in a registry of their own."""

    def __init__(self, slots: int) -> None:
        self.registry = new_registry()
        self._requests = Counter(
            "fastrun_worker_requests",
            "Requests by how they ended: stop, length, tool_calls, aborted, refused, engine_failed,"
            " crashed, moved or drained; not_admitted came without a good lease or a free slot.",
            ["end"],
            registry=self.registry,
        )
        self._tokens = Counter(
            "fastrun_worker_tokens",
            "Tokens of ended requests: prompt (cached ones too), cached, completion.",
            ["kind"],
            registry=self.registry,
        )
        self._first_token = Histogram(
            "fastrun_worker_first_token_seconds",
            "From Start to the first token.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._inter_token = Histogram(
            "fastrun_worker_inter_token_seconds",
            "From one token to the next: the mean of each request that ended by itself.",
            buckets=_TOKEN_SECONDS,
            registry=self.registry,
        )
        self._duration = Histogram(
            "fastrun_worker_request_seconds",
            "From Start to the end.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._model = Gauge(
            "fastrun_worker_model_info",
            "1, with the model that is loaded and what computes it.",
            ["model", "engine"],
            registry=self.registry,
        )
        self._healthy = self._gauge(
            "engine_healthy", "1 while the engine can run requests; 0 before that, and once dead."
        )
        self._gauge("slots", "How many requests may run at once.").set(slots)
        self._in_use = self._gauge("slots_in_use", "Slots that are held.")
        self._engine = {
            "running": self._gauge("engine_running", "Requests in the engine's batch."),
            "waiting": self._gauge("engine_waiting", "Requests not prefilled yet."),
            "kv_blocks_used": self._gauge("kv_blocks_used", "Blocks of the KV cache in use."),
            "kv_blocks_total": self._gauge("kv_blocks", "Blocks of the KV cache."),
            "prefill_tokens": self._gauge("engine_prefill_tokens", "Of prompts, not computed yet."),
            "context_tokens": self._gauge("engine_context_tokens", "Computed for what runs."),
            "preemptions": self._gauge("engine_preemptions", "Requests put back, since the start."),
        }

    def loaded(self, model: str, engine: str) -> None:
        """The engine has its model."""
        self._model.labels(model, engine).set(1)

    def refused(self) -> None:
        """Count a Start without a good lease or a free slot."""
        self._requests.labels("not_admitted").inc()

    def ended(self, outcome: Outcome) -> None:
        """Count a request that was admitted."""
        self._requests.labels(outcome.end).inc()
        self._duration.observe(outcome.duration_s)
        if outcome.first_token_s is not None:
            self._first_token.observe(outcome.first_token_s)
        if outcome.inter_token_s is not None:
            self._inter_token.observe(outcome.inter_token_s)
        if outcome.usage is not None:
            self._tokens.labels("prompt").inc(outcome.usage.prompt_tokens)
            self._tokens.labels("cached").inc(outcome.usage.cached_tokens)
            self._tokens.labels("completion").inc(outcome.usage.completion_tokens)

    def healthy(self, *, is_healthy: bool) -> None:
        """Show whether the engine can run requests."""
        self._healthy.set(is_healthy)

    def observe(self, stats: EngineStats, *, slots_in_use: int) -> None:
        """Take the engine's counters."""
        self._in_use.set(slots_in_use)
        for name, gauge in self._engine.items():
            gauge.set(getattr(stats, name))

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"fastrun_worker_{name}", text, registry=self.registry)
