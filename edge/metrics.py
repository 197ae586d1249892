"""What the edge counts. Labels are few and small: never an account, a key or a path of a client."""

from collections.abc import Callable

from prometheus_client import Gauge

from edge.exchange import NO_MODEL, OTHER_MODEL
from edge.usage_lines import Status
from fastrun.service.metrics import new_registry
from fastrun.service.series import Counters, Histograms
from fastrun.v1.generation_pb2 import Usage

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """All metrics of one edge, in a registry of their own."""

    def __init__(self, *, spool_limit_bytes: int) -> None:
        registry = self.registry = new_registry()
        self._requests = Counters(
            "fastrun_edge_requests",
            "HTTP requests answered; status 499 is a client that left.",
            ("model", "endpoint", "status"),
            registry=registry,
        )
        self._running = Gauge(
            "fastrun_edge_requests_running", "HTTP requests being answered.", registry=registry
        )
        self._seconds = Histograms(
            "fastrun_edge_request_seconds",
            "From the head of a request to the end of its answer.",
            ("model", "endpoint"),
            bounds=_SECONDS,
            registry=registry,
        )
        self._first_delta = Histograms(
            "fastrun_edge_first_delta_seconds",
            "From the head of a request to the first text of its answer.",
            ("model",),
            bounds=_SECONDS,
            registry=registry,
        )
        self._queue = Histograms(
            "fastrun_edge_queue_seconds",
            "From asking for a slot to getting one.",
            ("model",),
            bounds=_SECONDS,
            registry=registry,
        )
        self._retries = Counters(
            "fastrun_edge_retries",
            "Generations tried again on a worker, by why the last try failed.",
            ("reason",),
            registry=registry,
        )
        self._resumes = Counters(
            "fastrun_edge_resumes",
            "Generations that went on at another worker, by why the last one lost them.",
            ("reason",),
            registry=registry,
        )
        self._tokens = Counters(
            "fastrun_edge_tokens",
            "Tokens of finished requests: prompt (cached ones too), cached, completion.",
            ("model", "kind"),
            registry=registry,
        )
        self._records = Counters(
            "fastrun_edge_usage_records",
            "Requests that were admitted, by how they ended: completed, cancelled, failed, partial"
            " (some of its counts are lost), lost.",
            ("status",),
            registry=registry,
        )
        self._deliveries = Counters(
            "fastrun_edge_usage_deliveries",
            "Usage records that the auth service took, or refused: those are only logged.",
            ("outcome",),
            registry=registry,
        )
        self._deliveries.add("refused", by=0)  # shown before the first: see alerts.yml
        self._corrupt = Counters(
            "fastrun_edge_spool_corrupt_lines",
            "Lines of the usage spool that were torn or spoiled.",
            registry=registry,
        )
        self._corrupt.add(by=0)
        self._spool_bytes = Gauge(
            "fastrun_edge_spool_bytes", "What lies in the usage spool.", registry=registry
        )
        Gauge(
            "fastrun_edge_spool_limit_bytes",
            "How much may lie in the usage spool; then requests are refused.",
            registry=registry,
        ).set(spool_limit_bytes)

        self._keys = Counters(
            "fastrun_edge_key_lookups",
            "API keys looked up, by what the answer was: fresh, refreshing (used while it is asked"
            " again), asked, grace (used because nobody could be asked), unknown, unavailable.",
            ("answer",),
            registry=registry,
        )
        for answer in ("grace", "unavailable"):  # shown before the first, as above
            self._keys.add(answer, by=0)
        self._watched = Gauge(
            "fastrun_edge_key_watch_current",
            "Whether the auth service tells what changes about keys (1) or not (0).",
            registry=registry,
        )

    def looked_up(self, answer: str) -> None:
        """A key was looked up."""
        self._keys.add(answer)

    def watches(self, is_current: Callable[[], bool]) -> None:
        """Show whether the watch of keys is current, asked whenever somebody looks."""
        self._watched.set_function(is_current)

    def runs(self, running: Callable[[], int]) -> None:
        """Show how many requests are being answered, asked whenever somebody looks."""
        self._running.set_function(running)

    def ended(self, model: str, endpoint: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self._requests.add(model, endpoint, str(status))
        self._seconds.observe(model, endpoint, seconds=seconds)

    def first_delta(self, model: str, seconds: float) -> None:
        """The first text of an answer has come."""
        self._first_delta.observe(model, seconds=seconds)

    def queued(self, model: str, seconds: float) -> None:
        """A slot was granted."""
        self._queue.observe(model, seconds=seconds)

    def retried(self, reason: str) -> None:
        """A generation is tried again."""
        self._retries.add(reason)

    def resumed(self, reason: str) -> None:
        """A generation goes on at another worker."""
        self._resumes.add(reason)

    def metered(self, status: Status | None) -> None:
        """A usage record was made; None: a request left none, or is asked about."""
        if status is not None:
            self._records.add(status)

    def delivered(self, records: int) -> None:
        """The auth service has taken usage records."""
        self._deliveries.add("delivered", by=records)

    def refused(self) -> None:
        """The auth service will never take a usage record."""
        self._deliveries.add("refused")

    def corrupt(self, lines: int) -> None:
        """The usage spool had lines that cannot be read."""
        self._corrupt.add(by=lines)

    def spooled(self, size: int) -> None:
        """The usage spool has so many bytes."""
        self._spool_bytes.set(size)

    def used(self, model: str, usage: Usage) -> None:
        """A generation has ended well."""
        self._tokens.add(model, "prompt", by=usage.prompt_tokens)
        self._tokens.add(model, "cached", by=usage.cached_tokens)
        self._tokens.add(model, "completion", by=usage.completion_tokens)

    def keep(self, models: set[str]) -> None:
        """Drop the series of all other models: names come and go for years."""
        for each in (self._requests, self._seconds, self._first_delta, self._queue, self._tokens):
            each.keep(models | {NO_MODEL, OTHER_MODEL})
