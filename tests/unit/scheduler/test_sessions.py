"""Edges and workers that come, leave and come back."""

import pytest

from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason
from scheduler.fleet import FencedError
from scheduler.links import ProtocolError, StrangerError


def voided(link):
    return {void.lease_id for void in link.take("void")}


def test_the_first_item_is_a_hello(desk):
    """Anything else, or a Hello without its names, ends the session."""
    link = type(desk.edge())()
    for item in ({"cancel": {}}, {"hello": {}}):
        with pytest.raises(ProtocolError):
            desk.tell(link, **item)
    for item in ({"heartbeat": {}}, {"hello": {"worker_id": "w"}}):
        with pytest.raises(ProtocolError):
            desk.report(link, **item)


def test_an_edge_is_welcomed_with_the_models(desk):
    """Welcome comes first, then the models that were ever served."""
    desk.worker()
    welcome, models = desk.edge().take()
    assert welcome.term == 1
    assert [(each.card.model, each.ready) for each in models.models] == [("tiny", True)]
    assert models.complete


def test_models_are_told_when_they_change_only(desk):
    """A second worker of a model is no news; the last one's end is."""
    edge = desk.edge()
    first, second = desk.worker(), desk.worker("w2", "i2")
    assert len(edge.take("models")) == 2
    for worker in (first, second):
        desk.sessions.of_workers.left(worker, desk.now)
        desk.pass_time(5)
    (models,) = edge.take("models")
    assert [each.ready for each in models.models] == [False]


def test_an_edge_that_stays_away_has_its_leases_voided(desk):
    """After 5 s, not before; and they stay held."""
    worker, edge = desk.worker(slots=2), desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    desk.sessions.of_edges.left(edge, desk.now)
    desk.pass_time(4.9)
    assert voided(worker) == set()
    desk.pass_time(0.1)
    assert voided(worker) == {granted.lease_id}
    assert desk.held() == 1


def test_an_edge_that_comes_back_keeps_what_it_lists(desk):
    """A lease that its new Hello does not list never reached it."""
    worker, edge = desk.worker(slots=2), desk.edge()
    (kept,), (missed,) = desk.acquire(edge, "r1"), desk.acquire(edge, "r2")
    desk.sessions.of_edges.left(edge, desk.now)
    desk.edge(lease_ids=[kept.lease_id])
    assert voided(worker) == {missed.lease_id}
    desk.pass_time(60)
    assert voided(worker) == set()


def test_what_waits_is_forgotten_with_its_session(desk):
    """The edge asks again when it is back, with the time already waited."""
    desk.worker()
    edge = desk.edge()
    desk.acquire(edge, "r1")
    desk.acquire(edge, "r2")
    desk.sessions.of_edges.left(edge, desk.now)
    assert len(desk.queue) == 0
    back = desk.edge()
    assert desk.acquire(back, "r2", waited_ms=500)[0].position == 1


def test_a_replaced_session_of_an_edge_is_closed_and_ignored(desk):
    """Neither its late items nor its end touch the session that replaced it."""
    desk.worker()
    old = desk.edge()
    (granted,) = desk.acquire(old, "r1")
    new = desk.edge(lease_ids=[granted.lease_id])
    assert old.closed
    desk.tell(old, release={"lease_id": granted.lease_id})
    desk.tell(old, hello={"edge_id": "e1"})
    desk.sessions.of_edges.left(old, desk.now)
    desk.pass_time(60)
    assert desk.held() == 1
    assert desk.acquire(new, "r2")[0].position == 1


def test_a_worker_that_comes_back_keeps_its_leases(desk, foreign):
    """Listed leases stay, absent ones are voided, and no slot is free before it says so."""
    worker, edge = desk.worker(slots=2), desk.edge()
    (first,), (second,) = desk.acquire(edge, "r1"), desk.acquire(edge, "r2")
    desk.acquire(edge, "r3")
    desk.sessions.of_workers.left(worker, desk.now)
    back = desk.worker(slots=2, running=[first.lease], term=1)
    assert voided(back) == {second.lease_id}
    assert edge.take("granted") == []
    desk.free(back, second.lease_id)
    assert len(edge.take("granted")) == 1
    assert desk.held() == 2


def test_voids_are_sent_again_to_a_worker_that_comes_back(desk):
    """What it was asked before its session broke may never have reached it."""
    worker, edge = desk.worker(), desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    desk.sessions.of_workers.left(worker, desk.now)
    desk.tell(edge, lease_lost={"lease_id": granted.lease_id})
    back = desk.worker(running=[granted.lease], term=1)
    assert voided(back) == {granted.lease_id}


def test_a_gone_worker_holds_its_slots_and_brings_them_back(desk):
    """No silence, however long, frees a slot."""
    worker, edge = desk.worker(), desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    desk.sessions.of_workers.left(worker, desk.now)
    desk.pass_time(600)
    assert desk.held() == 1
    desk.worker(running=[granted.lease], term=1)
    assert desk.acquire(edge, "r2")[0].position == 1


def test_a_forgotten_worker_brings_its_books_along(desk):
    """A worker that returns after an hour is known again from what it runs."""
    worker, edge = desk.worker(slots=2), desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    desk.sessions.of_workers.left(worker, desk.now)
    desk.pass_time(3600)
    assert (len(desk.book), desk.sessions.fleet.workers()) == (0, [])
    desk.worker(slots=2, running=[granted.lease], term=1)
    assert desk.held() == 1


def test_a_new_process_of_a_worker_ends_the_leases_of_the_old(desk):
    """At once; and what the old one still says is ignored."""
    old, edge = desk.worker(), desk.edge()
    desk.acquire(edge, "r1")
    desk.acquire(edge, "r2")
    new = desk.worker(instance_id="i2")
    (granted,) = edge.take("granted")
    assert (granted.request_id, granted.instance_id) == ("r2", "i2")
    assert old.closed
    desk.free(old, granted.lease_id)
    desk.beat(old, "l99")
    desk.sessions.of_workers.left(old, desk.now)
    desk.pass_time(60)
    assert (desk.held("i1"), desk.held("i2")) == (0, 1)
    assert desk.sessions.fleet.ready("tiny")
    assert not new.closed
    with pytest.raises(FencedError):
        desk.worker()


def test_a_worker_that_changes_its_model_leaves_the_other(desk, reasons):
    """Who waited for the former model alone is refused."""
    desk.worker()
    edge = desk.edge()
    desk.acquire(edge, "r1")
    desk.acquire(edge, "r2")
    desk.worker(instance_id="i2", model="other")
    assert [each.error.reason for each in edge.take("rejected")] == [reasons["no_worker"]]


def test_books_are_rebuilt_from_what_workers_run(desk, foreign):
    """A scheduler that knows nothing counts every running lease, whoever granted it."""
    worker = desk.worker(slots=2, running=[foreign("x1"), foreign("x2")], term=5)
    edge = desk.edge(lease_ids=["x1", "x2"], term=5)
    assert desk.acquire(edge, "r1")[0].position == 1
    assert voided(worker) == set()
    desk.free(worker, "x1")
    assert len(edge.take("granted")) == 1


def test_leases_whose_edge_never_comes_back_are_voided(desk, foreign):
    """5 s after they were found running."""
    worker = desk.worker(running=[foreign("x1", edge_id="dead")])
    desk.pass_time(4.9)
    assert voided(worker) == set()
    desk.pass_time(0.1)
    assert voided(worker) == {"x1"}
    assert desk.held() == 1


def test_a_running_lease_that_its_edge_does_not_know_is_voided(desk, foreign):
    """The edge has said Hello before the worker, without it; so has a worker that voided it."""
    desk.edge(lease_ids=["x2"])
    worker = desk.worker(slots=3, running=[foreign("x1"), foreign("x2"), foreign("x3")])
    assert voided(worker) == {"x1", "x3"}
    other = desk.worker("w2", "i2", running=[foreign("x4", "i2", "e2")], voided=["x4"])
    assert voided(other) == {"x4"}


def test_blobs_that_do_not_fit_are_not_booked(desk, foreign):
    """Neither what cannot be read nor the lease of another instance holds a slot here."""
    desk.worker(slots=2, running=[b"?", foreign("x1", instance_id="i9")])
    assert len(desk.book) == 0


def test_a_stray_lease_holds_a_slot_until_it_is_freed(desk):
    """A worker that lists a lease nobody booked is full by that much, and asked to end it."""
    worker, edge = desk.worker(), desk.edge()
    worker.take()
    desk.beat(worker, "x1")
    assert voided(worker) == {"x1"}
    assert desk.acquire(edge, "r1")[0].position == 1
    desk.beat(worker, "x1")
    assert voided(worker) == set()
    desk.free(worker, "x1")
    assert len(edge.take("granted")) == 1
    desk.beat(worker, "x1")
    assert desk.held() == 1


def test_everybody_is_told_when_the_term_rises(desk):
    """Workers and edges get a new Welcome, and new leases are signed with the new key."""
    edge, worker = desk.edge(), desk.worker()
    edge.take()
    (before,) = worker.take("welcome")
    other = desk.worker("w2", "i2", term=6)
    (told,), (again,), (welcome,) = (link.take("welcome") for link in (edge, worker, other))
    assert (told.term, again.term, welcome.term) == (7, 7, 7)
    assert again.lease_key == welcome.lease_key != before.lease_key
    desk.edge("e2", term=9)
    assert worker.take("welcome")[0].term == 10
    welcome, models = edge.take()
    assert (welcome.term, len(models.models)) == (10, 1)


def test_a_peer_that_reconnects_does_not_raise_the_term(desk):
    """It carries what it was told here."""
    worker, edge = desk.worker(), desk.edge()
    desk.sessions.of_workers.left(worker, desk.now)
    desk.sessions.of_edges.left(edge, desk.now)
    desk.worker(term=1)
    desk.edge(term=1)
    assert desk.sessions.leader.term == 1


def test_a_drain_is_passed_on_to_its_worker_alone(desk):
    """The worker is told the deadline, or that its own setting is meant; the caller, who drains."""
    first, second = desk.worker(slots=2), desk.worker("w2", "i2")
    edge = desk.edge()
    desk.acquire(edge, "r1")
    answer = desk.sessions.of_workers.drain("w1", 2500)
    assert (answer.instance_id, answer.slots_in_use) == ("i1", desk.held())
    assert [drain.deadline_ms for drain in first.take("drain")] == [2500]
    assert second.take("drain") == []
    desk.sessions.of_workers.drain("w1", None)
    assert not first.take("drain")[0].HasField("deadline_ms")


def test_a_drain_that_reaches_nobody_is_refused(desk):
    """The refusal says which workers there are, or that the one meant has no session."""
    desk.worker("w2", "i2")
    link = desk.worker()
    with pytest.raises(ServiceError, match="there is no worker 'w3': use one of w1, w2") as refused:
        desk.sessions.of_workers.drain("w3", None)
    assert refused.value.detail.reason == ErrorReason.ERROR_REASON_NOT_FOUND
    desk.sessions.of_workers.left(link, desk.now)
    with pytest.raises(ServiceError, match="no session") as refused:
        desk.sessions.of_workers.drain("w1", None)
    assert refused.value.detail.reason == ErrorReason.ERROR_REASON_CONFLICT


def test_a_worker_is_replaced_under_its_certificate_only(desk):
    """While its id is known, also while it is gone; what it runs stays as it is."""
    worker, edge = desk.worker(certificate="gpu-1"), desk.edge()
    desk.acquire(edge, "r1")
    for instance_id in ("i1", "i2"):
        with pytest.raises(StrangerError, match="known by the certificate of gpu-1, and this"):
            desk.worker(instance_id=instance_id, certificate="gpu-2")
    assert not worker.closed
    desk.sessions.of_workers.left(worker, desk.now)
    desk.pass_time(60)
    with pytest.raises(StrangerError):
        desk.worker(instance_id="i2", certificate="gpu-2")
    assert desk.held() == 1
    desk.worker(instance_id="i2", certificate="gpu-1")
    assert (desk.held(), desk.held("i2")) == (0, 0)


def test_a_forgotten_worker_s_name_is_free(desk):
    """Whoever says it first has it, and workers may share a certificate."""
    worker = desk.worker(certificate="gpu-1")
    desk.worker("w2", "i2", certificate="gpu-1")
    desk.sessions.of_workers.left(worker, desk.now)
    desk.pass_time(3605)
    desk.worker(instance_id="i3", certificate="gpu-2")
    assert desk.sessions.fleet.worker("w1").certificate == "gpu-2"


def test_an_edge_is_replaced_under_its_certificate_only(desk, foreign):
    """One of which only a lease is known, whoever comes first."""
    worker = desk.worker(running=[foreign("l1")], term=1)
    edge = desk.edge(lease_ids=["l1"], certificate="one")
    with pytest.raises(StrangerError, match="edge 'e1' is known by the certificate of one"):
        desk.edge(certificate="two")
    assert not edge.closed
    assert voided(worker) == set()


DRAINING = "WORKER_STATE_DRAINING"


def ends(desk, link):
    """A worker's session ends, and it does not come back in time."""
    desk.sessions.of_workers.left(link, desk.now)
    desk.pass_time(6)


def test_a_worker_that_was_told_to_end_is_no_warning(desk, warnings):
    """It drained, freed all that it ran and left; another process may come in its place."""
    edge, link = desk.edge(), desk.worker()
    (granted,) = desk.acquire(edge, "r1")
    desk.beat(link, granted.lease_id, state=DRAINING)
    desk.free(link, granted.lease_id)
    desk.beat(link, state=DRAINING)
    ends(desk, link)
    desk.worker(instance_id="i2")
    assert warnings() == []


@pytest.mark.parametrize("said", [{}, {"state": DRAINING, "engine_dead": True}])
def test_a_worker_that_was_not_told_to_end_is_one(desk, warnings, said):
    """It went away, or its engine died and it drained by itself."""
    link = desk.worker()
    desk.beat(link, **said)
    ends(desk, link)
    assert warnings() == ["worker_left", "worker_gone"]
    desk.worker(instance_id="i2")
    assert warnings() == ["worker_replaced"]


def test_a_worker_that_ends_within_its_drain_is_a_warning(desk, warnings):
    """What it ran was cut off."""
    edge, link = desk.edge(), desk.worker()
    (granted,) = desk.acquire(edge, "r1")
    desk.beat(link, granted.lease_id, state=DRAINING)
    desk.sessions.of_workers.left(link, desk.now)
    assert warnings() == ["worker_left"]
    desk.worker(instance_id="i2")
    assert warnings() == ["worker_replaced"]


@pytest.mark.parametrize("holds", [False, True])
def test_an_edge_that_is_gone_is_a_warning_if_it_held_leases(desk, warnings, holds):
    """One that was told to end has let go of all before."""
    edge, _ = desk.edge(), desk.worker()
    if holds:
        desk.acquire(edge, "r1")
    desk.sessions.of_edges.left(edge, desk.now)
    desk.pass_time(6)
    assert warnings() == (["edge_gone"] if holds else [])


def test_a_scheduler_that_stops_misses_nobody(desk, warnings):
    """It ends the sessions itself."""
    link = desk.worker()
    desk.sessions.close()
    desk.sessions.of_workers.left(link, desk.now)
    assert warnings() == []
