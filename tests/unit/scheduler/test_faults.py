"""Faults of our own: each is one request's or one item's, and the books stay exact."""

import pytest

from scheduler.links import ProtocolError


@pytest.fixture
def limits(desk):
    """The limits that requests are held against."""
    return desk.sessions.admission.limits


def test_a_fault_in_an_acquire_is_that_request_s_alone(desk, faults, limits, reasons):
    """It is refused as our fault, what it was granted is voided, and the next one is served."""
    worker, edge = desk.worker(), desk.edge()
    desk.faulty.add("tiny")
    (rejected,) = desk.acquire(edge, "r1")
    assert rejected.error.reason == reasons["internal"]
    assert desk.rejections == [reasons["internal"]]
    assert faults() == ["acquire_failed"]
    (void,) = worker.take("void")
    assert desk.held() == 1
    desk.faulty.clear()
    desk.acquire(edge, "r2")
    desk.free(worker, void.lease_id)
    (granted,) = edge.take("granted")
    assert granted.request_id == "r2"
    assert limits.in_flight() == {"r2"}


def test_a_fault_leaves_no_sibling_behind(desk, faults, limits, reasons):
    """All that waits of the request is refused with it, and what was granted is voided."""
    worker, edge = desk.worker(), desk.edge()
    (granted, queued) = desk.acquire(edge, "r1", generations=[0, 1, 2])
    assert (granted.generation, queued.position) == (0, 1)
    desk.faulty.add("tiny")
    desk.free(worker, granted.lease_id)
    (rejected,) = edge.take("rejected")
    assert (rejected.request_id, list(rejected.generations)) == ("r1", [])
    assert rejected.error.reason == reasons["internal"]
    assert faults() == ["grant_failed"]
    (void,) = worker.take("void")
    assert len(desk.queue) == 0
    desk.free(worker, void.lease_id)
    assert (desk.held(), limits.in_flight()) == (0, set())


def test_a_fault_in_a_grant_does_not_hold_up_the_line(desk, faults):
    """Who waits behind it gets the slot once its worker has given it back."""
    worker, edge = desk.worker(), desk.edge()
    (first,) = desk.acquire(edge, "r1")
    desk.acquire(edge, "r2")
    desk.acquire(edge, "r3")
    desk.faulty.add("tiny")
    desk.free(worker, first.lease_id)
    desk.faulty.clear()
    (rejected,) = edge.take("rejected")
    assert rejected.request_id == "r2"
    assert faults() == ["grant_failed"]
    (void,) = worker.take("void")
    desk.free(worker, void.lease_id)
    (granted,) = edge.take("granted")
    assert granted.request_id == "r3"


def test_what_a_fault_kept_from_running_is_not_charged(desk, faults, limits):
    """The request is given back to its account's limits, once nothing of it can run any more."""
    worker, edge = desk.worker(), desk.edge()
    desk.faulty.add("tiny")
    desk.acquire(edge, "r1", account_limits={"requests_per_minute": 5})
    (void,) = worker.take("void")
    desk.free(worker, void.lease_id)
    assert limits.figures("acc", "", desk.now).remaining_requests == 5
    assert faults() == ["acquire_failed"]


def test_a_fault_in_a_refusal_is_a_refusal(desk, faults, reasons, monkeypatch):
    """Whoever waited too long is told so or that it is our fault, and the others are told too."""
    desk.worker()
    edge = desk.edge()
    desk.acquire(edge, "r1")
    desk.acquire(edge, "r2", patience_s=1)
    desk.acquire(edge, "r3", patience_s=1)
    monkeypatch.setattr(desk.sessions.admission.refusals, "detail", None)
    desk.pass_time(1)
    rejected = edge.take("rejected")
    assert [(each.request_id, each.error.reason) for each in rejected] == [
        ("r2", reasons["internal"]),
        ("r3", reasons["internal"]),
    ]
    assert faults() == ["refusal_failed"] * 2


def test_a_fault_in_what_a_wait_ends_with_is_a_refusal(desk, faults, limits, reasons, monkeypatch):
    """It is told so, and counts as concurrent no longer."""
    desk.worker()
    edge = desk.edge()
    desk.acquire(edge, "r1")
    desk.acquire(edge, "r2", patience_s=1)
    monkeypatch.setattr(desk.sessions.admission.refusals, "why_expired", None)
    desk.pass_time(1)
    (rejected,) = edge.take("rejected")
    assert (rejected.request_id, rejected.error.reason) == ("r2", reasons["internal"])
    assert faults() == ["refusal_failed"]
    assert limits.in_flight() == {"r1"}


def test_a_lease_that_cannot_be_held_leaves_nothing_at_its_worker(new_desk, faults, monkeypatch):
    """It is no load there, and a worker that was to be tried with it is tried with another one."""
    desk = new_desk(breaker_failures=1, breaker_open_s=1.0)
    desk.worker("w1", "i1")
    edge = desk.edge()
    desk.tell(edge, worker_failed={"instance_id": "i1"})
    desk.worker("w2", "i2")
    desk.acquire(edge, "r1")
    desk.pass_time(1)
    prompt = {"prefix_hashes": [1], "prefix_tokens": [512], "prompt_tokens": 600}
    with monkeypatch.context() as patch:
        patch.setattr(desk.book, "grant", None)
        desk.acquire(edge, "r2", **prompt)
    assert faults() == ["acquire_failed"]
    failing = desk.sessions.fleet.instance("i1")
    assert (failing.load.context_tokens, failing.load.settled_backlog) == (0, 0)
    (granted,) = desk.acquire(edge, "r3", **prompt)
    assert granted.worker_id == "w1"


def test_a_slot_is_free_whatever_its_usage_does(desk, faults, limits):
    """Its worker says so once: a usage that cannot be taken must not hold it for ever."""
    worker, edge = desk.worker(), desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    desk.faulty.add("tiny")
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    desk.report(worker, slot_freed={"lease_id": granted.lease_id, "usage": usage})
    assert faults() == ["usage_not_taken"]
    assert (desk.held(), limits.in_flight()) == (0, set())
    (found,) = desk.sessions.usage_log.find(["r1"], desk.now)
    assert found.usage.completion_tokens == 2


def test_an_odd_item_of_a_worker_does_not_end_its_session(desk, faults, monkeypatch):
    """What it says next is heeded."""
    worker, edge = desk.worker(), desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    with monkeypatch.context() as patch:
        patch.setattr(desk.sessions.fleet, "beat", None)
        desk.beat(worker, granted.lease_id)
    assert faults() == ["worker_item_failed"]
    desk.free(worker, granted.lease_id)
    assert desk.held() == 0


def test_an_odd_item_of_an_edge_does_not_end_its_session(desk, faults, monkeypatch):
    """What it says next is heeded."""
    desk.worker()
    edge = desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    with monkeypatch.context() as patch:
        patch.setattr(desk.sessions.admission, "failed", None)
        desk.tell(edge, worker_failed={"instance_id": "i1"})
    assert faults() == ["edge_item_failed"]
    desk.tell(edge, release={"lease_id": granted.lease_id})
    assert desk.held() == 0


def test_a_worker_whose_hello_cannot_be_taken_is_granted_nothing(desk, monkeypatch):
    """Its session ends, and until it has said all that it runs its slots are not counted on."""
    edge = desk.edge()
    with monkeypatch.context() as patch:
        patch.setattr("scheduler.worker_sessions.reconcile", None)
        with pytest.raises(TypeError):
            desk.worker()
    assert desk.acquire(edge, "r1")[0].position == 1
    desk.worker()
    assert [each.request_id for each in edge.take("granted")] == ["r1"]


def test_a_hello_that_breaks_the_protocol_ends_the_session(desk):
    """It is the peer's fault, which is told so."""
    worker = desk.worker()
    with pytest.raises(ProtocolError):
        desk.report(worker, hello={"worker_id": "w1"})
