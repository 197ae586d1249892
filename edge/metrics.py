"""What the edge counts. Labels are few and small: never an account, a key or a path of a client."""

import functools
from collections.abc import Callable
from typing import Generic, TypeVar

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from edge.exchange import NO_MODEL, OTHER_MODEL
from edge.usage_lines import Status
from fastrun.service.metrics import new_registry
from fastrun.v1.generation_pb2 import Usage

MetricT = TypeVar("MetricT", bound=MetricWrapperBase)

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """All metrics of one edge, in a registry of their own.

    Series that a request touches are looked up by their labels once: that costs more than counting.
    """

    def __init__(self, *, spool_limit_bytes: int) -> None:
        registry = self.registry = new_registry()
        self._requests = _ByModel(
            Counter(
                "fastrun_edge_requests",
                "HTTP requests answered; status 499 is a client that left.",
                ("model", "endpoint", "status"),
                registry=registry,
            )
        )
        self._running = Gauge(
            "fastrun_edge_requests_running", "HTTP requests being answered.", registry=registry
        )
        self._seconds = _ByModel(
            Histogram(
                "fastrun_edge_request_seconds",
                "From the head of a request to the end of its answer.",
                ("model", "endpoint"),
                buckets=_SECONDS,
                registry=registry,
            )
        )
        self._first_delta = _ByModel(
            Histogram(
                "fastrun_edge_first_delta_seconds",
                "From the head of a request to the first text of its answer.",
                ("model",),
                buckets=_SECONDS,
                registry=registry,
            )
        )
        self._queue = _ByModel(
            Histogram(
                "fastrun_edge_queue_seconds",
                "From asking for a slot to getting one.",
                ("model",),
                buckets=_SECONDS,
                registry=registry,
            )
        )
        self._retries = Counter(
            "fastrun_edge_retries",
            "Generations tried again on a worker, by why the last try failed.",
            ("reason",),
            registry=registry,
        )
        self._resumes = Counter(
            "fastrun_edge_resumes",
            "Generations that went on at another worker, by why the last one lost them.",
            ("reason",),
            registry=registry,
        )
        self._tokens = _ByModel(
            Counter(
                "fastrun_edge_tokens",
                "Tokens of finished requests: prompt (cached ones too), cached, completion.",
                ("model", "kind"),
                registry=registry,
            )
        )
        self._by_model: tuple[_ByModel[Counter] | _ByModel[Histogram], ...] = (
            *(self._requests, self._tokens),
            *(self._seconds, self._first_delta, self._queue),
        )

        records = Counter(
            "fastrun_edge_usage_records",
            "Requests that were admitted, by how they ended: completed, cancelled, failed, partial"
            " (some of its counts are lost), lost.",
            ("status",),
            registry=registry,
        )
        self._records = functools.cache(records.labels)
        self._deliveries = Counter(
            "fastrun_edge_usage_deliveries",
            "Usage records that the auth service took, or refused: those are only logged.",
            ("outcome",),
            registry=registry,
        )
        self._refused = self._deliveries.labels("refused")  # shown before the first: see alerts.yml
        self._corrupt = Counter(
            "fastrun_edge_spool_corrupt_lines",
            "Lines of the usage spool that were torn or spoiled.",
            registry=registry,
        )
        self._spool_bytes = Gauge(
            "fastrun_edge_spool_bytes", "What lies in the usage spool.", registry=registry
        )
        Gauge(
            "fastrun_edge_spool_limit_bytes",
            "How much may lie in the usage spool; then requests are refused.",
            registry=registry,
        ).set(spool_limit_bytes)

        keys = Counter(
            "fastrun_edge_key_lookups",
            "API keys looked up, by what the answer was: fresh, refreshing (used while it is asked"
            " again), asked, grace (used because nobody could be asked), unknown, unavailable.",
            ("answer",),
            registry=registry,
        )
        self._keys = functools.cache(keys.labels)
        for answer in ("grace", "unavailable"):  # shown before the first, as above
            self._keys(answer)
        self._watched = Gauge(
            "fastrun_edge_key_watch_current",
            "Whether the auth service tells what changes about keys (1) or not (0).",
            registry=registry,
        )

    def looked_up(self, answer: str) -> None:
        """A key was looked up."""
        self._keys(answer).inc()

    def watches(self, is_current: Callable[[], bool]) -> None:
        """Show whether the watch of keys is current, asked whenever somebody looks."""
        self._watched.set_function(is_current)

    def began(self) -> None:
        """A request has come."""
        self._running.inc()

    def ended(self, model: str, endpoint: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self._running.dec()
        self._requests.of(model, endpoint, str(status)).inc()
        self._seconds.of(model, endpoint).observe(seconds)

    def first_delta(self, model: str, seconds: float) -> None:
        """The first text of an answer has come."""
        self._first_delta.of(model).observe(seconds)

    def queued(self, model: str, seconds: float) -> None:
        """A slot was granted."""
        self._queue.of(model).observe(seconds)

    def retried(self, reason: str) -> None:
        """A generation is tried again."""
        self._retries.labels(reason).inc()

    def resumed(self, reason: str) -> None:
        """A generation goes on at another worker."""
        self._resumes.labels(reason).inc()

    def metered(self, status: Status | None) -> None:
        """A usage record was made; None: a request left none, or is asked about."""
        if status is not None:
            self._records(status).inc()

    def delivered(self, records: int) -> None:
        """The auth service has taken usage records."""
        self._deliveries.labels("delivered").inc(records)

    def refused(self) -> None:
        """The auth service will never take a usage record."""
        self._refused.inc()

    def corrupt(self, lines: int) -> None:
        """The usage spool had lines that cannot be read."""
        self._corrupt.inc(lines)

    def spooled(self, size: int) -> None:
        """The usage spool has so many bytes."""
        self._spool_bytes.set(size)

    def used(self, model: str, usage: Usage) -> None:
        """A generation has ended well."""
        self._tokens.of(model, "prompt").inc(usage.prompt_tokens)
        self._tokens.of(model, "cached").inc(usage.cached_tokens)
        self._tokens.of(model, "completion").inc(usage.completion_tokens)

    def keep(self, models: set[str]) -> None:
        """Drop the series of all other models: names come and go for years."""
        for each in self._by_model:
            each.keep(models | {NO_MODEL, OTHER_MODEL})


class _ByModel(Generic[MetricT]):
    """A metric whose first label is a model; each of its series is looked up once."""

    def __init__(self, metric: MetricT) -> None:
        self._metric = metric
        self._labels: set[tuple[str, ...]] = set()
        self.of = functools.cache(self._look_up)

    def keep(self, models: set[str]) -> None:
        gone = {labels for labels in self._labels if labels[0] not in models}
        for labels in gone:
            self._metric.remove(*labels)
        self._labels -= gone
        if gone:
            self.of.cache_clear()

    def _look_up(self, *labels: str) -> MetricT:
        self._labels.add(labels)
        return self._metric.labels(*labels)
