"""What the scheduler tells of the time that requests wait."""

import pytest

from fastrun.service.tracing import Span

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Tracer:
    """Keeps what it is told."""

    def __init__(self):
        self.told = []

    def begin(self, parent, began_at):
        return Span(parent and f"{parent}/part", parent, began_at)

    def end(self, span, name, ended_at, facts, *, failed=False):
        if span.traceparent:
            self.told.append((name, span.parent, ended_at - span.began_at, facts))


@pytest.fixture
def traced(new_desk):
    """A scheduler of one slot, an edge, and what is told."""
    tracer = Tracer()
    desk = new_desk(tracer=tracer)
    return desk, desk.edge(), desk.worker(slots=1), tracer.told


def test_the_wait_is_told(traced):
    """A grant tells how long it was waited for, of which worker it is, and whose part it is."""
    desk, edge, worker, told = traced
    (first,) = desk.acquire(edge, "r1", traceparent=PARENT)
    desk.acquire(edge, "r2", traceparent=PARENT)
    desk.pass_time(3)
    desk.free(worker, first.lease_id)
    granted = {"model": "tiny", "generation": 0, "worker_id": "w1"}
    assert told == [
        ("queue", PARENT, 0.0, {"request_id": "r1", **granted}),
        ("queue", PARENT, 3.0, {"request_id": "r2", **granted}),
    ]


def test_waits_in_vain(traced):
    """What is refused, or given up, says so."""
    desk, edge, _, told = traced
    desk.acquire(edge, "r1")
    desk.acquire(edge, "r2", traceparent=PARENT, patience_s=2)
    desk.acquire(edge, "r3", traceparent=PARENT)
    desk.tell(edge, cancel={"request_id": "r3"})
    desk.pass_time(5)
    assert [(waited_s, facts["refusal"]) for _, _, waited_s, facts in told] == [
        (0.0, "cancelled"),
        (2.0, "queue_timeout"),
    ]
