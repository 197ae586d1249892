"""What the scheduler counts."""

from collections import Counter as Tally

from prometheus_client import Gauge

from fastrun.service.errors import reason_name
from fastrun.service.metrics import new_registry
from fastrun.service.series import Counters, Histograms
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.scheduler_pb2 import WatchFleetResponse

_DECISION_S = (10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3)
_WAIT_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_STATES = ("joining", "serving", "draining", "failing", "suspect", "gone")


class Metrics:
    """One registry and what goes into it; a Recorder of decisions."""

    def __init__(self) -> None:
        self.registry = new_registry()
        self._decision = Histograms(
            "fastrun_scheduler_decision_seconds",
            "How long answering an Acquire took.",
            bounds=_DECISION_S,
            registry=self.registry,
        )
        self._wait = Histograms(
            "fastrun_scheduler_wait_seconds",
            "How long generations waited here until they were granted a slot.",
            ("model",),
            bounds=_WAIT_S,
            registry=self.registry,
        )
        self._grants = self._counter("grants", "Leases granted.", "model")
        self._rejections = self._counter("rejections", "Requests refused, by why.", "reason")
        self._prompt = self._counter("prompt_tokens", "Of prompts that ran, all tokens.", "model")
        self._cached = self._counter("cached_tokens", "Of these, those that were cached.", "model")
        self._failing = self._counter("breakers_opened", "Workers that began to fail.", "model")
        self._waiting = self._gauge("queue_waiting", "Requests that wait.", "model")
        self._slots = self._gauge("slots", "Slots of workers that are not gone.", "model")
        self._in_use = self._gauge("slots_in_use", "Of these, those that a lease holds.", "model")
        self._workers = self._gauge("workers", "Worker processes that are known.", "state")
        self._edges = self._gauge("edges", "Edges with a session.")
        self._drift = self._gauge(
            "drift", "Leases held for 5 s that their worker does not list: 0, or a slot is lost."
        )
        self._term = self._gauge("term", "The highest term that was heard of.")
        self._leads = self._gauge("leads", "1 while this scheduler leads, 0 while it stands by.")
        self._shown: set[str] = set()
        """Models that the gauges show."""

    def decided(self, seconds: float) -> None:
        """Note how long a decision took."""
        self._decision.observe(seconds=seconds)

    def granted(self, model: str, waited_s: float) -> None:
        """Count a grant."""
        self._grants.add(model)
        self._wait.observe(model, seconds=waited_s)

    def rejected(self, reason: ErrorReason.ValueType) -> None:
        """Count a refusal."""
        self._rejections.add(reason_name(reason))

    def used(self, model: str, prompt_tokens: int, cached_tokens: int) -> None:
        """Count what was cached."""
        self._prompt.add(model, by=prompt_tokens)
        self._cached.add(model, by=cached_tokens)

    def failing(self, model: str) -> None:
        """Count a breaker that opens."""
        self._failing.add(model)

    def observe(self, view: WatchFleetResponse) -> None:
        """Set the gauges to what the fleet looks like now, and drop models that were forgotten."""
        self._keep({queue.model for queue in view.queues})
        slots: Tally[str] = Tally()
        in_use: Tally[str] = Tally()
        states = Tally(worker.state for worker in view.workers)
        for worker in view.workers:
            if worker.state != "gone":
                slots[worker.model] += worker.slots
                in_use[worker.model] += worker.slots_in_use
        for queue in view.queues:
            self._waiting.labels(queue.model).set(queue.waiting)
            self._slots.labels(queue.model).set(slots[queue.model])
            self._in_use.labels(queue.model).set(in_use[queue.model])
        for state in _STATES:
            self._workers.labels(state).set(states[state])
        self._edges.set(view.edges)
        self._drift.set(view.drift)
        self._term.set(view.term)
        self._leads.set(view.leads)

    def _keep(self, known: set[str]) -> None:
        """A model that is forgotten leaves no series behind: names come and go for years."""
        for counted in (self._wait, self._grants, self._prompt, self._cached, self._failing):
            counted.keep(known)
        for model in self._shown - known:
            for gauge in (self._waiting, self._slots, self._in_use):
                gauge.remove(model)
        self._shown = known

    def _counter(self, name: str, text: str, label: str) -> Counters:
        return Counters(f"fastrun_scheduler_{name}", text, (label,), registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"fastrun_scheduler_{name}", text, labels, registry=self.registry)
