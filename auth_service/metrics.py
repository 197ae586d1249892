"""What the auth service counts."""

from prometheus_client import Counter, Gauge, Histogram

from fastrun.service.metrics import new_registry

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Metrics:
    """One registry and what goes into it."""

    def __init__(self) -> None:
        self.registry = new_registry()
        self.verify_seconds = Histogram(
            "fastrun_auth_verify_seconds",
            "How long looking up a key took.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.watches = Gauge(
            "fastrun_auth_watches",
            "Edges that follow key events.",
            registry=self.registry,
        )
        self._verified = Counter(
            "fastrun_auth_verified",
            "Keys looked up, by outcome: known, unknown, unavailable.",
            ["outcome"],
            registry=self.registry,
        )

        self.record_seconds = Histogram(
            "fastrun_auth_record_usage_seconds",
            "How long committing a batch of usage records took.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._recorded = Counter(
            "fastrun_auth_usage_records",
            "Usage records taken: new, or known already.",
            ["outcome"],
            registry=self.registry,
        )

    def verified(self, outcome: str) -> None:
        """Count one lookup."""
        self._verified.labels(outcome).inc()

    def recorded(self, *, new: int, known: int) -> None:
        """Count the records of one batch."""
        self._recorded.labels("new").inc(new)
        self._recorded.labels("known").inc(known)
