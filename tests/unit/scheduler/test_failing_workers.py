"""Requests while workers fail: who is passed over, who waits, and until when."""

import pytest

from fastrun.v1.generation_pb2 import Usage

RAN = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3)


@pytest.fixture
def fleet(desk):
    """Two workers of one slot each, and an edge."""
    desk.workers = {f"w{number}": desk.worker(f"w{number}", f"i{number}") for number in (1, 2)}
    desk.link = desk.edge()
    return desk


def fail(fleet, instance_id, *lease_ids):
    for lease_id in lease_ids or [""] * 5:
        failed = {"instance_id": instance_id, "lease_id": lease_id}
        fleet.tell(fleet.link, worker_failed=failed)


def ask(fleet, request_id, **fields):
    """Return who is granted, or nothing if it waits."""
    answers = fleet.acquire(fleet.link, request_id, **fields)
    return answers[0] if hasattr(answers[0], "lease_id") else None


def end(fleet, granted, usage=RAN):
    freed = {"lease_id": granted.lease_id, "usage": usage}
    fleet.report(fleet.workers[granted.worker_id], slot_freed=freed)


def granted_now(fleet):
    return [(each.request_id, each.worker_id) for each in fleet.link.take("granted")]


def test_requests_wait_for_the_worker_that_does_not_fail(fleet):
    """A worker that fails is passed over though its slot is free, and the operator hears of it."""
    fail(fleet, "i1")
    first = ask(fleet, "r1")
    assert first.worker_id == "w2"
    assert ask(fleet, "r2") is None
    assert fleet.failing == ["tiny"]
    end(fleet, first)
    assert granted_now(fleet) == [("r2", "w2")]


def test_who_waits_tries_a_failing_worker_when_its_time_has_come(fleet):
    """After 10 s the first one is let through, without another event; the others wait for it."""
    fail(fleet, "i1")
    ask(fleet, "r1", patience_s=60)
    ask(fleet, "r2", patience_s=60)
    ask(fleet, "r3", patience_s=60)
    fleet.pass_time(9.9)
    assert granted_now(fleet) == []
    fleet.pass_time(0.1)
    (trial,) = fleet.link.take("granted")
    assert (trial.request_id, trial.worker_id) == ("r2", "w1")
    end(fleet, trial)
    assert granted_now(fleet) == [("r3", "w1")]


def test_a_trial_that_says_nothing_is_repeated(fleet):
    """Its client has left: the next who waits tries the worker, at once."""
    fail(fleet, "i1")
    for request_id in ("r1", "r2", "r3"):
        ask(fleet, request_id, patience_s=60)
    fleet.pass_time(10)
    (trial,) = fleet.link.take("granted")
    fleet.tell(fleet.link, release={"lease_id": trial.lease_id})
    fleet.pass_time(0)
    assert granted_now(fleet) == [("r3", "w1")]


def test_when_all_fail_those_who_wait_go_on(fleet):
    """The last breaker that opens stops nothing: all are used as if none were open."""
    fail(fleet, "i1")
    ask(fleet, "r1")
    assert ask(fleet, "r2") is None
    fail(fleet, "i2")
    assert granted_now(fleet) == [("r2", "w1")]


def test_when_the_other_worker_is_gone_those_who_wait_go_on(fleet):
    """And when it drains: then it takes requests no more."""
    fail(fleet, "i1")
    ask(fleet, "r1", patience_s=60)
    assert ask(fleet, "r2", patience_s=60) is None
    fleet.sessions.of_workers.left(fleet.workers["w2"], fleet.now)
    fleet.pass_time(5)
    assert granted_now(fleet) == [("r2", "w1")]


def test_when_the_other_worker_serves_another_model_those_who_wait_go_on(fleet):
    """It has started anew with it, and nobody else of the model is left."""
    fail(fleet, "i1")
    ask(fleet, "r1", patience_s=60)
    assert ask(fleet, "r2", patience_s=60) is None
    fleet.worker("w2", "i3", model="other")
    assert granted_now(fleet) == [("r2", "w1")]


def test_an_attach_that_breaks_with_many_requests_opens_it(desk):
    """All are lost at once, and what the worker says of them afterwards is no success."""
    desk.workers = {"w1": desk.worker(slots=8), "w2": desk.worker("w2", "i2", slots=16)}
    desk.link = desk.edge()
    ones = [ask(desk, f"r{number}", excluded_worker_ids=["w2"]) for number in range(8)]
    for granted in ones:
        desk.tell(desk.link, lease_lost={"lease_id": granted.lease_id})
    for granted in ones:
        end(desk, granted)
    assert {ask(desk, f"n{number}").worker_id for number in range(8)} == {"w2"}


def test_leases_that_a_worker_refuses_are_no_failures(fleet):
    """They are doubted, as those that were lost, and speak against nobody."""
    for number in range(5):
        granted = ask(fleet, f"r{number}", excluded_worker_ids=["w2"])
        fleet.tell(fleet.link, lease_lost={"lease_id": granted.lease_id, "refused": True})
        (void,) = fleet.workers["w1"].take("void")
        assert void.lease_id == granted.lease_id
        end(fleet, granted, usage=None)
    assert fleet.failing == []


def test_a_failure_counts_after_its_slot_is_free(fleet):
    """A worker says that all went well, and then each edge that it did not."""
    for number in range(5):
        granted = ask(fleet, f"r{number}", excluded_worker_ids=["w2"])
        end(fleet, granted)
        fail(fleet, "i1", granted.lease_id)
    assert fleet.failing == ["tiny"]


def test_refusals_and_clients_that_leave_are_no_failures(fleet):
    """Neither a released lease nor an aborted request counts, however often."""
    for number in range(20):
        granted = ask(fleet, f"r{number}", excluded_worker_ids=["w2"])
        if number % 2:
            fleet.tell(fleet.link, release={"lease_id": granted.lease_id})
        else:
            end(fleet, granted, Usage(prompt_tokens=10))
    assert fleet.failing == []


def test_an_unknown_process_fails_nothing(fleet):
    """What is said of a worker that is no more is too late."""
    fail(fleet, "i9")
    assert fleet.failing == []


def test_a_request_that_other_workers_failed_may_use_a_failing_one(fleet):
    """For it there is no other worker."""
    fail(fleet, "i1")
    assert ask(fleet, "r1", excluded_worker_ids=["w2"]).worker_id == "w1"


def test_it_waits_for_a_failing_one_and_gets_it(fleet):
    """Also out of the queue, when the failing worker's slot becomes free."""
    first = ask(fleet, "r1", excluded_worker_ids=["w2"])
    fail(fleet, "i1")
    assert ask(fleet, "r2", excluded_worker_ids=["w2"]) is None
    ask(fleet, "r3")
    end(fleet, first, Usage(prompt_tokens=10))
    assert granted_now(fleet) == [("r2", "w1")]


def test_what_was_cached_is_counted(fleet):
    """As the workers say, for each generation that ran."""
    end(fleet, ask(fleet, "r1"))
    assert fleet.used == [("tiny", 10, 4)]


def test_a_conversation_goes_on_where_it_was(desk):
    """The edge's hashes of a prompt lead it to the worker that has computed its beginning."""
    desk.workers = {f"w{number}": desk.worker(f"w{number}", f"i{number}", 4) for number in range(9)}
    desk.link = desk.edge()
    turn = {"prefix_hashes": [7, 8, 9], "prefix_tokens": [500, 1000, 1500], "prompt_tokens": 1600}
    first = ask(desk, "r1", **turn)
    end(desk, first, Usage(prompt_tokens=1600, completion_tokens=10))
    for number in range(5):
        ask(desk, f"other{number}", prompt_tokens=10)
    turn["prefix_hashes"], turn["prefix_tokens"] = [7, 8, 9, 10], [500, 1000, 1500, 2000]
    assert ask(desk, "r2", **turn).worker_id == first.worker_id
