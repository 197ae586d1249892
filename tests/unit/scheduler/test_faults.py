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


def test_what_a_fault_kept_from_running_is_not_charged(desk, faults):
    """The request is given back to its account's limits, once nothing of it can run any more."""
    worker, edge = desk.worker(), desk.edge()
    desk.faulty.add("tiny")
    desk.acquire(edge, "r1", account_limits={"requests_per_minute": 5})
    (void,) = worker.take("void")
    desk.free(worker, void.lease_id)
    assert desk.rate_limit("acc", "").remaining_requests == 5
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


def test_a_slot_goes_to_who_waits_whatever_the_limits_do(desk, faults, monkeypatch):
    """What they count is wrong then, and nobody waits for a slot that is free."""
    worker, edge = desk.worker(), desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    desk.acquire(edge, "r2")
    with monkeypatch.context() as patch:
        patch.setattr(desk.sessions.admission.limits, "left", None)
        desk.free(worker, granted.lease_id)
    assert faults() == ["limits_failed"]
    assert [each.request_id for each in edge.take("granted")] == ["r2"]


def test_a_worker_joins_whatever_the_limits_do(desk, faults, foreign, monkeypatch):
    """What it runs holds its slots, and the others are granted."""
    edge = desk.edge(lease_ids=["x1"])
    with monkeypatch.context() as patch:
        patch.setattr(desk.sessions.admission.limits, "hold", None)
        desk.worker(slots=2, running=[foreign("x1")])
    assert faults() == ["limits_failed"]
    assert desk.held() == 1
    assert [each.request_id for each in desk.acquire(edge, "r1")] == ["r1"]


def failing_for(original, matches):
    """The same, but for some of what it is called with."""

    def call(first, *others, **named):
        if matches(first):
            raise RuntimeError
        return original(first, *others, **named)

    return call


def test_a_fault_in_a_review_is_one_request_s(desk, faults, reasons, monkeypatch):
    """All that wait in vain are told so, when their worker is gone, but for the one it is about."""
    worker, edge = desk.worker(), desk.edge()
    desk.acquire(edge, "r1")
    for request_id in ("r2", "r3", "r4"):
        desk.acquire(edge, request_id, patience_s=60)
    desk.sessions.of_workers.left(worker, desk.now)
    refusals = desk.sessions.admission.refusals
    faulty = failing_for(refusals.why_hopeless, lambda waiting: waiting.request_id == "r2")
    monkeypatch.setattr(refusals, "why_hopeless", faulty)
    desk.pass_time(5)
    told = {each.request_id: each.error.reason for each in edge.take("rejected")}
    assert told == {
        "r2": reasons["internal"],
        "r3": reasons["no_worker"],
        "r4": reasons["no_worker"],
    }
    assert faults() == ["review_failed"]
    assert len(desk.queue) == 0


def test_a_fault_in_a_review_takes_all_of_its_request(desk, faults, monkeypatch):
    """Whatever of it waits at other places is refused with it, once."""
    worker, edge = desk.worker(slots=2), desk.edge()
    granted = [
        *desk.acquire(edge, "r1", patience_s=60),
        *desk.acquire(edge, "r2", generations=[0, 1], patience_s=60),
    ]
    desk.acquire(edge, "r2", generations=[0], front=True, patience_s=60)
    assert len(desk.queue.of_request("e1", "r2")) == 2
    desk.sessions.of_workers.left(worker, desk.now)
    refusals = desk.sessions.admission.refusals
    with monkeypatch.context() as patch:
        patch.setattr(refusals, "why_hopeless", None)
        desk.pass_time(5)
    assert faults() == ["review_failed"]
    assert [each.request_id for each in edge.take("rejected")] == ["r2"]
    assert len(desk.queue) == 0
    assert len(granted) == 3


def test_a_fault_about_one_worker_is_no_other_s(desk, faults, reasons, monkeypatch):
    """Two are gone at once: who waits for the second is told so."""
    first, second = desk.worker("w1", "i1"), desk.worker("w2", "i2", model="other")
    edge = desk.edge()
    for model in ("tiny", "other"):
        desk.acquire(edge, f"running {model}", model=model)
        desk.acquire(edge, f"waiting {model}", model=model, patience_s=60)
    for worker in (first, second):
        desk.sessions.of_workers.left(worker, desk.now)
    monkeypatch.setattr(
        desk.book, "of_instance", failing_for(desk.book.of_instance, lambda each: each == "i1")
    )
    with pytest.raises(ExceptionGroup):
        desk.pass_time(5)
    (rejected,) = edge.take("rejected")
    assert (rejected.request_id, rejected.error.reason) == ("waiting other", reasons["no_worker"])
    assert faults() == []


def test_whatever_else_is_due_is_done(desk, reasons, monkeypatch):
    """Who has waited as long as it may is told, though something before it failed."""
    desk.worker()
    edge = desk.edge()
    desk.acquire(edge, "r1")
    desk.acquire(edge, "r2", patience_s=1)
    for peers in (desk.sessions.of_edges, desk.sessions.of_workers):
        monkeypatch.setattr(peers, "expire", failing_for(peers.expire, lambda _now: True))
    with pytest.raises(ExceptionGroup) as caught:
        desk.pass_time(1)
    assert len(caught.value.exceptions) == 2
    (rejected,) = edge.take("rejected")
    assert (rejected.request_id, rejected.error.reason) == ("r2", reasons["queue_timeout"])


def broken(link):
    """A session that can take nothing."""
    link.send = None


def test_a_session_that_takes_nothing_ends(desk, faults):
    """Its peer comes back, and its Hello brings up what it was not told."""
    worker, edge = desk.worker(slots=2), desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    broken(worker)
    desk.tell(edge, lease_lost={"lease_id": granted.lease_id})
    assert faults() == ["item_not_sent"]
    assert worker.closed
    broken(edge)
    desk.acquire(edge, "r2")
    assert faults() == ["item_not_sent"] * 2
    assert edge.closed
    for peer in (desk.sessions.of_workers, desk.sessions.of_edges):
        peer.left(worker if peer is desk.sessions.of_workers else edge, desk.now)
    worker, edge = desk.worker(slots=2), desk.edge()
    voided = [each.lease_id for each in worker.take("void")]
    assert granted.lease_id in voided
    assert len(voided) == 2
    for lease_id in voided:
        desk.free(worker, lease_id)
    assert desk.held() == 0


def test_a_void_that_nobody_answers_is_said_again(desk):
    """With the next heartbeat: a fault at the worker must not keep a slot for ever."""
    worker, edge = desk.worker(), desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    desk.tell(edge, lease_lost={"lease_id": granted.lease_id})
    assert len(worker.take("void")) == 1
    desk.beat(worker, granted.lease_id)
    assert worker.take("void") == []
    desk.beat(worker)
    (void,) = worker.take("void")
    desk.free(worker, void.lease_id)
    desk.beat(worker)
    assert worker.take("void") == []
    assert desk.held() == 0


def test_a_freed_slot_that_was_not_heard_of_is_asked_for(desk, faults, monkeypatch):
    """What a worker listed and lists no more, it has freed, and it says so once more."""
    worker, edge = desk.worker(), desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    desk.beat(worker)
    assert worker.take("void") == []
    desk.beat(worker, granted.lease_id)
    with monkeypatch.context() as patch:
        patch.setattr(desk.sessions.admission, "freed", None)
        desk.free(worker, granted.lease_id)
    assert faults() == ["worker_item_failed"]
    desk.beat(worker)
    (void,) = worker.take("void")
    desk.free(worker, void.lease_id)
    assert desk.held() == 0


@pytest.mark.parametrize("peer", ["worker", "edge", "nobody"])
def test_a_term_that_is_begun_half_way_is_begun_again(new_desk, peer, monkeypatch):
    """By whatever comes next: a Hello, or the time; nothing is answered before."""
    desk = new_desk(database_url="postgresql://")
    terms = desk.sessions.terms
    with monkeypatch.context() as patch:
        patch.setattr(desk.sessions.models, "begin_term", None)
        with pytest.raises(TypeError):
            terms.took_row(1, desk.now)
        assert not terms.leads
        for join in (desk.worker, desk.edge):
            with pytest.raises(TypeError):
                join()
    links = {"worker": None, "edge": None}
    if peer != "nobody":
        links[peer] = getattr(desk, peer)()
    desk.pass_time(0)
    assert terms.leads
    worker, edge = links["worker"] or desk.worker(), links["edge"] or desk.edge()
    desk.pass_time(0)
    assert [welcome.term for welcome in worker.take("welcome")] == [1]
    assert [each.request_id for each in desk.acquire(edge, "r1")] == ["r1"]
    assert desk.held() == 1


def test_a_term_that_is_ended_half_way_is_ended_again(new_desk, monkeypatch):
    """Who stands by answers nothing, and has no books once all is done."""
    desk = new_desk(database_url="postgresql://")
    desk.sessions.terms.took_row(1, desk.now)
    desk.pass_time(0)
    worker, edge = desk.worker(), desk.edge()
    desk.acquire(edge, "r1")
    with monkeypatch.context() as patch:
        patch.setattr(desk.sessions.admission, "begin", None)
        with pytest.raises(TypeError):
            desk.sessions.terms.refused_row(2, desk.now)
    assert desk.held() == 1
    desk.sessions.terms.refused_row(2, desk.now)
    assert desk.held() == 0
    for link in (worker, edge):
        assert link.take("welcome")[-1].term == 0


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


def test_what_a_process_held_that_is_no_more_ends_though_its_successor_s_hello_fails(
    desk, monkeypatch
):
    """Nothing would end it later: the next Hello replaces nobody."""
    desk.worker()
    edge = desk.edge()
    desk.acquire(edge, "r1")
    with monkeypatch.context() as patch:
        patch.setattr(desk.sessions.terms, "welcome_worker", None)
        with pytest.raises(TypeError):
            desk.worker(instance_id="i2")
    desk.worker(instance_id="i2")
    assert (len(desk.book), desk.sessions.admission.limits.in_flight()) == (0, set())


def test_a_hello_that_breaks_the_protocol_ends_the_session(desk):
    """It is the peer's fault, which is told so."""
    worker = desk.worker()
    with pytest.raises(ProtocolError):
        desk.report(worker, hello={"worker_id": "w1"})
