"""What a worker counts."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gpu_worker.engine.protocol import EngineStats
from gpu_worker.generation import Outcome

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """The worker's metrics, in a registry of their own."""

    def __init__(self, slots: int) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "fastrun_worker_requests",
            "Requests by how they ended.",
            ["end"],
            registry=self.registry,
        )
        self._tokens = Counter(
            "fastrun_worker_tokens",
            "Tokens of ended requests; cached ones are part of prompt.",
            ["kind"],
            registry=self.registry,
        )
        self._first_token = Histogram(
            "fastrun_worker_first_token_seconds",
            "From Start to the first token.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._duration = Histogram(
            "fastrun_worker_request_seconds",
            "From Start to the end.",
            buckets=_SECONDS,
            registry=self.registry,
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

    def refused(self) -> None:
        """Count a Start without a good lease or a free slot."""
        self._requests.labels("not_admitted").inc()

    def ended(self, outcome: Outcome) -> None:
        """Count a request that was admitted."""
        self._requests.labels(outcome.end).inc()
        self._duration.observe(outcome.duration_s)
        if outcome.first_token_s is not None:
            self._first_token.observe(outcome.first_token_s)
        if outcome.usage is not None:
            self._tokens.labels("prompt").inc(outcome.usage.prompt_tokens)
            self._tokens.labels("cached").inc(outcome.usage.cached_tokens)
            self._tokens.labels("completion").inc(outcome.usage.completion_tokens)

    def observe(self, stats: EngineStats, *, slots_in_use: int) -> None:
        """Take the engine's counters."""
        self._in_use.set(slots_in_use)
        for name, gauge in self._engine.items():
            gauge.set(getattr(stats, name))

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"fastrun_worker_{name}", text, registry=self.registry)
