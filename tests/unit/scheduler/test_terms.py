"""What begins and ends with a term, and what a scheduler does that stands by."""

import pytest

from fastrun.service.errors import ServiceError
from fastrun.v1.scheduler_pb2 import FindUsageRequest
from fastrun.v1.worker_pb2 import ModelCard
from scheduler.links import ProtocolError
from scheduler.view import fleet_view

LEASED = {"database_url": "postgresql://"}


@pytest.fixture
def standby(new_desk):
    return new_desk(**LEASED)


@pytest.fixture
def leader(new_desk):
    desk = new_desk(**LEASED)
    desk.sessions.terms.took_row(1, desk.now)
    desk.pass_time(0)
    desk.sessions.tick(desk.now)
    return desk


def hello(desk, link, term, running=(), instance_id="i1", slots=1):
    desk.report(
        link,
        hello={
            "worker_id": "w1",
            "instance_id": instance_id,
            "address": "i1:1",
            "model": {"model": "tiny"},
            "slots": slots,
            "running_leases": running,
            "term": term,
        },
    )


def test_who_stands_by_answers_nothing(standby):
    """It welcomes everybody with term 0, and no Acquire is heeded."""
    worker, edge = standby.worker(), standby.edge()
    assert [welcome.term for welcome in worker.take("welcome")] == [0]
    assert [welcome.term for welcome in edge.take()] == [0]
    assert standby.acquire(edge, "r1") == []
    standby.pass_time(60)
    assert edge.take() == []
    assert len(standby.queue) == 0


def test_who_stands_by_sees_the_fleet(standby):
    """Heartbeats included."""
    worker = standby.worker(slots=3)
    standby.edge()
    standby.beat(worker, "x1", "x2")
    *_, view = fleet_view(standby.sessions, drift_after_s=5, now=standby.now)
    (status,) = view.workers
    assert (status.state, status.slots, status.slots_in_use) == ("serving", 3, 2)
    assert (view.leads, view.edges, view.drift) == (False, 1, 0)
    assert worker.take("void") == []


def test_a_worker_is_granted_nothing_before_its_hello_of_the_term(standby, foreign):
    """What it runs is counted from that Hello on, not from the one before or a heartbeat."""
    worker = standby.worker(slots=1, term=4)
    edge = standby.edge(term=4)
    standby.sessions.terms.refused_row(4, standby.now)
    standby.sessions.terms.took_row(5, standby.now)
    (welcome,) = worker.take("welcome")[-1:]
    assert welcome.term == 5
    standby.tell(edge, hello={"edge_id": "e1", "lease_ids": ["x1"], "term": 5})
    edge.take()
    assert standby.acquire(edge, "r1")[0].position == 1
    standby.beat(worker, "x1")
    assert worker.take("void") == []
    *_, view = fleet_view(standby.sessions, drift_after_s=5, now=standby.now)
    assert view.workers[0].state == "joining"
    hello(standby, worker, 5, running=[foreign("x1")])
    assert edge.take("granted") == []
    assert standby.held() == 1
    standby.free(worker, "x1")
    assert len(edge.take("granted")) == 1


def test_what_waits_for_a_worker_that_joins_is_not_hopeless(leader):
    """Also after the first seconds: it is there, and will say Hello."""
    edge = leader.edge()
    worker = leader.worker(answers=False)
    leader.pass_time(4)
    assert leader.acquire(edge, "r1")[0].position == 1
    assert edge.take("rejected") == []
    hello(leader, worker, 1)
    assert len(edge.take("granted")) == 1


def test_an_edge_is_heard_from_its_hello_of_the_term_on(leader):
    """It asks again for all that waits then; what came before may be of another term."""
    leader.worker()
    edge = leader.edge(answers=False)
    edge.take()
    assert leader.acquire(edge, "r1") == []
    leader.tell(edge, hello={"edge_id": "e1", "term": 1})
    assert len(leader.acquire(edge, "r1")) == 1


def test_a_missing_model_may_yet_come_after_a_takeover(new_desk, reasons):
    """For 2 s nobody is refused for it; then at once."""
    desk = new_desk(warm_up_s=2.0, **LEASED)
    desk.pass_time(60)
    desk.sessions.terms.took_row(1, desk.now)
    edge = desk.edge()
    (models,) = edge.take("models")
    assert not models.complete
    assert desk.acquire(edge, "r1")[0].position == 1
    desk.pass_time(1.9)
    assert edge.take("rejected") == []
    desk.pass_time(0.2)
    assert [each.error.reason for each in edge.take("rejected")] == [reasons["unknown_model"]]


def test_a_missing_model_may_yet_come_after_a_new_term_of_who_leads(new_desk, reasons):
    """One that was frozen and takes the row again counts on nobody it has not heard since."""
    desk = new_desk(warm_up_s=2.0, **LEASED)
    desk.sessions.terms.took_row(1, desk.now)
    edge = desk.edge()
    desk.pass_time(60)
    assert edge.take("models")[-1].complete
    desk.sessions.terms.took_row(2, desk.now)
    assert not edge.take("models")[-1].complete
    desk.tell(edge, hello={"edge_id": "e1", "term": 2})
    assert desk.acquire(edge, "r1")[0].position == 1
    desk.pass_time(1.9)
    assert edge.take("rejected") == []
    desk.pass_time(0.2)
    assert [each.error.reason for each in edge.take("rejected")] == [reasons["unknown_model"]]


def test_stepping_down_forgets_what_waits_and_what_is_held(leader):
    """Everybody is told; what it granted is another one's to count, and it grants no more."""
    worker, edge = leader.worker(), leader.edge()
    (granted,) = leader.acquire(edge, "r1")
    leader.acquire(edge, "r2")
    leader.sessions.terms.refused_row(2, leader.now)
    assert [welcome.term for welcome in edge.take("welcome")][-1] == 0
    assert [welcome.term for welcome in worker.take("welcome")][-1] == 0
    assert (len(leader.queue), len(leader.book)) == (0, 0)
    leader.free(worker, granted.lease_id)
    leader.pass_time(60)
    assert edge.take("granted", "rejected") == []


def test_a_hello_of_a_higher_term_ends_the_leader(leader):
    """A worker that obeys another one says so in its session."""
    worker, edge = leader.worker(), leader.edge()
    hello(leader, worker, 2)
    assert [welcome.term for welcome in edge.take("welcome")][-1] == 0
    assert leader.sessions.leader.least == 3


def test_a_session_stays_with_its_peer(leader):
    """Another Hello in it is of the same process."""
    worker, edge = leader.worker(), leader.edge()
    with pytest.raises(ProtocolError):
        hello(leader, worker, 1, instance_id="i2")
    with pytest.raises(ProtocolError):
        leader.tell(edge, hello={"edge_id": "e2", "term": 1})


def test_who_stands_by_tells_what_a_worker_says_it_runs(standby):
    """It has no books; an operator who drains by it is told what runs all the same."""
    worker = standby.worker(slots=4)
    standby.beat(worker, "l1", "l2")
    assert standby.sessions.of_workers.drain("w1", None).slots_in_use == 2
    assert len(worker.take("drain")) == 1


def test_usage_is_known_of_leases_that_another_one_granted(standby):
    """Also while standing by; told again it changes nothing."""
    worker = standby.worker()
    for _ in range(2):
        standby.report(
            worker,
            slot_freed={
                "lease_id": "x1",
                "request_id": "r1",
                "generation": 2,
                "usage": {"prompt_tokens": 3, "completion_tokens": 4},
            },
        )
    request = FindUsageRequest(request_ids=["r1"])
    (found,) = standby.sessions.usage_log.find(request.request_ids, standby.now)
    assert (found.generation, found.worker_id, found.usage.completion_tokens) == (2, "w1", 4)
    assert len(standby.sessions.usage_log) == 1


def test_known_models_are_told_though_nobody_serves_them(leader, reasons):
    """503 and not 404: they were served before."""
    edge = leader.edge()
    leader.sessions.models.know([ModelCard(model="old", context_length=7)])
    (models,) = edge.take("models")[-1:]
    (state,) = models.models
    assert (state.card.model, state.ready) == ("old", False)
    (rejected,) = leader.acquire(edge, "r1", model="old")
    assert rejected.error.reason == reasons["no_worker"]


def test_a_model_may_be_forgotten_once_nobody_serves_it(leader, reasons):
    """Not while a worker may come back with it; then its name is unknown."""
    worker, edge = leader.worker(), leader.edge()

    def refusal(model):
        with pytest.raises(ServiceError) as caught:
            leader.sessions.models.check_forgettable(model)
        return caught.value.detail.reason

    assert refusal("tiny") == reasons["conflict"]
    assert refusal("other") == reasons["not_found"]
    leader.sessions.of_workers.left(worker, leader.now)
    assert refusal("tiny") == reasons["conflict"]
    leader.pass_time(5)
    leader.sessions.models.check_forgettable("tiny")
    leader.sessions.models.forget("tiny")
    assert edge.take("models")[-1].models == []
    (rejected,) = leader.acquire(edge, "r1")
    assert rejected.error.reason == reasons["unknown_model"]
    leader.sessions.terms.refused_row(9, leader.now)
    assert refusal("tiny") == reasons["unavailable"]


def test_who_stands_by_forgets_what_the_leader_forgot(standby):
    """What Postgres tells replaces what was known, but for what is served."""
    standby.worker()
    standby.sessions.models.know([ModelCard(model="old")])
    standby.sessions.models.know([ModelCard(model="new")])
    assert sorted(standby.sessions.fleet.cards) == ["new", "tiny"]


def test_a_trial_of_another_term_is_not_awaited(leader):
    """Who stood by has lost the lease that was to try a failing worker: it begins anew with it."""
    first, edge = leader.worker(), leader.edge()
    leader.worker("w2", "i2")
    for _ in range(5):
        leader.tell(edge, worker_failed={"instance_id": "i1"})
    leader.pass_time(10)
    (trial,) = leader.acquire(edge, "r1", excluded_worker_ids=["w2"])
    assert trial.instance_id == "i1"
    leader.sessions.terms.refused_row(2, leader.now)
    leader.sessions.terms.took_row(3, leader.now)
    hello(leader, first, 3)
    leader.worker("w2", "i2", term=3)
    states = {each.worker_id: each.state(leader.now) for each in leader.sessions.fleet.workers()}
    assert states == {"w1": "serving", "w2": "serving"}
