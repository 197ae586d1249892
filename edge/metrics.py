"""What the edge counts. Labels are few and small: never an account, a key or a path of a client."""

import functools
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from edge.usage_lines import Status
from fastrun.v1.generation_pb2 import Usage

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """All metrics of one edge, in a registry of their own.

    Series that a request touches are looked up by their labels once: that costs more than counting.
    """

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        requests = Counter(
            "fastrun_edge_requests",
            "HTTP requests answered; status 499 is a client that left.",
            ("endpoint", "status"),
            registry=registry,
        )
        self._requests = functools.cache(requests.labels)
        self._running = Gauge(
            "fastrun_edge_requests_running", "HTTP requests being answered.", registry=registry
        )
        seconds = Histogram(
            "fastrun_edge_request_seconds",
            "From the head of a request to the end of its answer.",
            ("endpoint",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._seconds = functools.cache(seconds.labels)
        self._first_delta = Histogram(
            "fastrun_edge_first_delta_seconds",
            "From the head of a request to the first text of its answer.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._queue = Histogram(
            "fastrun_edge_queue_seconds",
            "From asking for a slot to getting one.",
            buckets=_SECONDS,
            registry=registry,
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
        tokens = Counter(
            "fastrun_edge_tokens",
            "Tokens of finished requests: prompt (cached ones too), cached, completion.",
            ("kind",),
            registry=registry,
        )
        self._tokens = functools.cache(tokens.labels)

        records = Counter(
            "fastrun_edge_usage_records",
            "Requests that were admitted, by how they ended.",
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
        self._corrupt = Counter(
            "fastrun_edge_spool_corrupt_lines",
            "Lines of the usage spool that were torn or spoiled.",
            registry=registry,
        )
        self._spool_bytes = Gauge(
            "fastrun_edge_spool_bytes", "What lies in the usage spool.", registry=registry
        )

        keys = Counter(
            "fastrun_edge_key_lookups",
            "API keys looked up, by what the answer was: fresh, refreshing (used while it is asked"
            " again), asked, grace (used because nobody could be asked), unknown, unavailable.",
            ("answer",),
            registry=registry,
        )
        self._keys = functools.cache(keys.labels)
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

    def ended(self, endpoint: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self._running.dec()
        self._requests(endpoint, str(status)).inc()
        self._seconds(endpoint).observe(seconds)

    def first_delta(self, seconds: float) -> None:
        """The first text of an answer has come."""
        self._first_delta.observe(seconds)

    def queued(self, seconds: float) -> None:
        """A slot was granted."""
        self._queue.observe(seconds)

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
        self._deliveries.labels("refused").inc()

    def corrupt(self, lines: int) -> None:
        """The usage spool had lines that cannot be read."""
        self._corrupt.inc(lines)

    def spooled(self, size: int) -> None:
        """The usage spool has so many bytes."""
        self._spool_bytes.set(size)

    def used(self, usage: Usage) -> None:
        """A generation has ended well."""
        self._tokens("prompt").inc(usage.prompt_tokens)
        self._tokens("cached").inc(usage.cached_tokens)
        self._tokens("completion").inc(usage.completion_tokens)
