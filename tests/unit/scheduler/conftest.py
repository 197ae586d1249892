"""The scheduler's decisions, driven by hand: a clock, links that remember, peers in one line."""

from types import SimpleNamespace

import pytest
import structlog

from fastrun.service import leases
from fastrun.service.tracing import NO_TRACER
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.scheduler_pb2 import EdgeMessage, LeaseClaims, RateLimit, WorkerReport
from scheduler.config import Config
from scheduler.ports import Chance
from scheduler.sessions import Sessions


def _raise(_logger, _method, event):
    """Let a fault that is contained fail the test that did not ask for it."""
    if event.get("exc_info"):
        raise  # noqa: PLE0704 - what is being logged
    raise structlog.DropEvent


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    """Thousands of joins and leaves are no news here; a fault is."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("error"), processors=[_raise]
    )
    yield
    structlog.reset_defaults()


@pytest.fixture
def faults(_quiet):
    """The names of the faults that were logged; none of them fails the test."""
    with structlog.testing.capture_logs() as logged:
        yield lambda: [each["event"] for each in logged if each.get("exc_info")]


@pytest.fixture
def warnings(_quiet):
    """The names of the warnings that were logged since the last call."""
    config = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    with structlog.testing.capture_logs() as logged:

        def taken():
            names = [each["event"] for each in logged if each["log_level"] == "warning"]
            logged.clear()
            return names

        yield taken
    structlog.configure(**config)


class Link:
    """One session; holds what its peer was sent."""

    def __init__(self, certificate=""):
        self.certificate = certificate
        self.items = []
        self.closed = False

    def send(self, item):
        self.items.append(item)

    def close(self):
        self.closed = True

    def take(self, *kinds):
        """Return what was sent since the last call, of these kinds or all."""
        items, self.items = self.items, []
        named = [(item.WhichOneof("item"), item) for item in items]
        return [getattr(item, kind) for kind, item in named if not kinds or kind in kinds]


class Desk:
    """One scheduler with a clock that only moves when told to."""

    def __init__(self, tracer=NO_TRACER, **settings):
        self.now = 1000.0
        self.wall_s = 1_800_000_000.0
        self.numbers = 0
        self.grants = []
        self.rejections = []
        self.used = []
        self.failing = []
        self.faulty = set()
        """Models of which nothing can be recorded."""
        settings = {"warm_up_s": 0.0} | settings
        chance = Chance(
            new_id=lambda: f"l{self._next()}",
            new_key=lambda: b"key-%d" % self._next(),
            random=lambda: 0.0,
            wall_clock=lambda: self.wall_s,
        )
        recorder = SimpleNamespace(
            granted=lambda model, waited_s: self._record(self.grants, model, waited_s),
            rejected=self.rejections.append,
            used=lambda *figures: self._record(self.used, *figures),
            failing=self.failing.append,
        )
        self.sessions = Sessions(
            Config(**settings), now=self.now, chance=chance, recorder=recorder, tracer=tracer
        )
        if not settings["warm_up_s"]:
            self.sessions.tick(self.now)

    @property
    def book(self):
        return self.sessions.admission.leases

    @property
    def queue(self):
        return self.sessions.admission.queue

    def rate_limit(self, account_id, key_id):
        told = RateLimit()
        self.sessions.admission.limits.tell(told, account_id, key_id, self.now)
        return told

    def _next(self):
        self.numbers += 1
        return self.numbers

    def _record(self, figures, model, *others):
        if model in self.faulty:
            raise RuntimeError(model)
        figures.append((model, *others))

    def edge(self, edge_id="e1", lease_ids=(), term=0, *, answers=True, certificate=""):
        """An edge that answers a Welcome of a higher term with another Hello, as edges do."""
        link = Link(certificate)
        hello = {"edge_id": edge_id, "lease_ids": lease_ids, "term": term}
        self.tell(link, hello=hello)
        if answers and self.sessions.leader.term > term:
            self.tell(link, hello=hello | {"term": self.sessions.leader.term})
        return link

    def tell(self, link, **item):
        self.sessions.of_edges.said(link, EdgeMessage(**item), self.now)

    def acquire(self, link, request_id, model="tiny", patience_s=10, **fields):
        fields = {"account_id": "acc"} | fields | {"request_id": request_id, "model": model}
        self.tell(link, acquire={"queue_timeout_ms": int(patience_s * 1000), **fields})
        return link.take("granted", "queued", "rejected")

    def worker(
        self,
        worker_id="w1",
        instance_id="i1",
        slots=1,
        running=(),
        voided=(),
        term=0,
        model="tiny",
        *,
        answers=True,
        certificate="",
        **said,
    ):
        """A worker that answers a Welcome of a higher term with another Hello, as workers do."""
        link = Link(certificate)
        hello = {
            "worker_id": worker_id,
            "instance_id": instance_id,
            "address": f"{instance_id}:1",
            "model": {"model": model},
            "slots": slots,
            "running_leases": running,
            "voided_lease_ids": voided,
            "term": term,
            **said,
        }
        self.report(link, hello=hello)
        if answers and self.sessions.leader.term > term:
            self.report(link, hello=hello | {"term": self.sessions.leader.term})
        return link

    def report(self, link, **item):
        self.sessions.of_workers.said(link, WorkerReport(**item), self.now)

    def free(self, link, lease_id):
        self.report(link, slot_freed={"lease_id": lease_id})

    def beat(self, link, *lease_ids, **fields):
        self.report(link, heartbeat={"running_lease_ids": lease_ids, **fields})

    def pass_time(self, seconds):
        until = self.now + seconds
        while (due := self.sessions.next_due()) is not None and due <= until:
            self.now = max(due, self.now)
            self.sessions.tick(self.now)
        self.now = until

    def held(self, instance_id="i1"):
        return self.book.held(instance_id)


@pytest.fixture
def desk():
    """A scheduler whose first seconds are over."""
    return Desk()


@pytest.fixture
def new_desk():
    """How to make one with settings of its own."""
    return Desk


@pytest.fixture
def foreign():
    """How to make the lease of another scheduler."""

    def make(lease_id, instance_id="i1", edge_id="e1"):
        claims = LeaseClaims(
            lease_id=lease_id, request_id="r", instance_id=instance_id, edge_id=edge_id, term=1
        )
        return leases.sign(claims, b"another")

    return make


@pytest.fixture
def reasons():
    """The reasons of refusals by short names."""
    return {name.removeprefix("ERROR_REASON_").lower(): n for name, n in ErrorReason.items()}
