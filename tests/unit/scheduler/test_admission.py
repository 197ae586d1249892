"""Grants, waits and refusals."""

import pytest

from fastrun.service import leases

AT_CAPACITY = "all backends for this model are at capacity"


def kinds(replies):
    return [type(reply).__name__ for reply in replies]


def turns(desk, worker, edge, grant, slots):
    """Free the one slot that goes from request to request so often; returns who gets it."""
    order = []
    for _ in range(slots):
        desk.free(worker, grant.lease_id)
        (grant,) = edge.take("granted")
        order.append(grant.request_id)
    return order


def test_a_grant_names_worker_and_lease(desk):
    """Granted carries what the edge needs, and a lease for just this worker, edge and term."""
    desk.worker()
    (granted,) = desk.acquire(desk.edge(), "r1")
    assert (granted.worker_id, granted.instance_id, granted.address) == ("w1", "i1", "i1:1")
    claims = leases.verify(granted.lease, desk.sessions.leader.lease_key)
    assert (claims.lease_id, claims.request_id) == (granted.lease_id, "r1")
    assert (claims.instance_id, claims.edge_id, claims.term) == ("i1", "e1", 1)
    assert desk.grants == [("tiny", 0.0)]


def test_who_waits_is_served_in_order(desk):
    """A freed slot goes to the first in the queue, and the time it waited is recorded."""
    worker, edge, other = desk.worker(), desk.edge(), desk.edge("e2")
    (granted,) = desk.acquire(edge, "r1")
    assert desk.acquire(edge, "r2")[0].position == 1
    assert desk.acquire(other, "r3")[0].position == 2
    desk.pass_time(2)
    desk.free(worker, granted.lease_id)
    assert [each.request_id for each in edge.take("granted")] == ["r2"]
    assert other.take("granted") == []
    assert desk.grants[-1] == ("tiny", 2.0)


def test_a_slot_goes_to_whose_prompt_is_cached_there(desk):
    """Of those whose turn is near; whoever is passed over gets the slot where its own is."""
    workers, edge = {"w1": desk.worker("w1", "i1"), "w2": desk.worker("w2", "i2")}, desk.edge()

    def ask(request_id, block):
        (answer,) = desk.acquire(
            edge, request_id, prompt_tokens=600, prefix_hashes=[block], prefix_tokens=[512]
        )
        return answer

    def finish(granted):
        usage = {"prompt_tokens": 600, "completion_tokens": 1}
        freed = {"lease_id": granted.lease_id, "usage": usage}
        desk.report(workers[granted.worker_id], slot_freed=freed)
        return [(each.request_id, each.worker_id) for each in edge.take("granted")]

    first, other = ask("r1", 1), ask("r2", 2)
    assert [ask("r3", 2).position, ask("r4", 1).position] == [1, 2]
    assert finish(first) == [("r4", first.worker_id)]
    assert finish(other) == [("r3", other.worker_id)]


@pytest.mark.parametrize("patience_s", [2, 10])
def test_a_large_request_is_not_kept_waiting_by_small_ones_that_keep_coming(desk, patience_s):
    """Where its prompt is cached no slot becomes free: it gets another one before it is too late."""
    workers, edge = {"w1": desk.worker("w1", "i1"), "w2": desk.worker("w2", "i2")}, desk.edge()
    prompt = {"prefix_hashes": [1], "prefix_tokens": [3000], "prompt_tokens": 3000}
    desk.acquire(edge, "running", account_id="other", **prompt)
    (last,) = desk.acquire(edge, "small", account_id="busy", token_estimate=100)
    desk.acquire(edge, "large", patience_s=patience_s, token_estimate=100_000, **prompt)
    served, number = "", 0
    while served != "large":
        number += 1
        desk.acquire(edge, f"small{number}", account_id="busy", token_estimate=100)
        desk.pass_time(0.1)
        desk.free(workers[last.worker_id], last.lease_id)
        (last,) = edge.take("granted", "rejected")  # a refusal beside it fails here
        served = last.request_id


def test_a_wait_counts_from_its_beginning(desk, reasons):
    """What a request has waited elsewhere shortens its deadline and decides its place."""
    desk.worker()
    edge = desk.edge()
    desk.acquire(edge, "r1")
    desk.acquire(edge, "r2")
    assert desk.acquire(edge, "r3", waited_ms=8_000)[0].position == 1
    desk.pass_time(1.9)
    assert edge.take("rejected") == []
    desk.pass_time(0.2)
    (rejected,) = edge.take("rejected")
    assert (rejected.request_id, rejected.error.message) == ("r3", AT_CAPACITY)
    assert rejected.error.reason == reasons["queue_timeout"]


def test_no_patience_means_an_answer_now(desk, reasons):
    """With a queue timeout of 0 a request is granted or refused, never queued."""
    desk.worker()
    edge = desk.edge()
    assert kinds(desk.acquire(edge, "r1", patience_s=0)) == ["Granted"]
    (rejected,) = desk.acquire(edge, "r2", patience_s=0)
    assert rejected.error.reason == reasons["queue_timeout"]


def test_the_queue_is_bounded_by_the_slots_of_the_fleet(new_desk, reasons):
    """A newcomer to a full queue is refused; a worker's arrival makes room."""
    desk = new_desk(queue_per_slot=2)
    desk.worker()
    edge = desk.edge()
    replies = [desk.acquire(edge, f"r{number}")[0] for number in range(4)]
    assert kinds(replies) == ["Granted", "Queued", "Queued", "Rejected"]
    assert replies[-1].error.reason == reasons["queue_full"]
    assert replies[-1].error.message == AT_CAPACITY
    desk.worker("w2", "i2")
    assert len(edge.take("granted")) == 1
    assert kinds(desk.acquire(edge, "r5")) == ["Queued"]
    assert desk.rejections == [reasons["queue_full"]]


def test_a_bound_of_nothing_refuses_at_once(new_desk, reasons):
    """With no queue at all nobody waits, not even who was refused by a worker."""
    desk = new_desk(queue_per_slot=0)
    desk.worker()
    edge = desk.edge()
    desk.acquire(edge, "r1")
    for front in (False, True):
        (rejected,) = desk.acquire(edge, "r2", front=front)
        assert rejected.error.reason == reasons["queue_full"]


def test_a_refused_lease_is_asked_for_again_at_the_front(new_desk):
    """It goes before all others and over the bound, and its old lease is voided first."""
    desk = new_desk(queue_per_slot=1)
    worker, edge = desk.worker(), desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    desk.acquire(edge, "r2")
    worker.take()
    assert desk.acquire(edge, "r1", front=True)[0].position == 1
    assert [void.lease_id for void in worker.take("void")] == [granted.lease_id]
    assert desk.held() == 1
    desk.free(worker, granted.lease_id)
    assert [each.request_id for each in edge.take("granted")] == ["r1"]


def test_a_repeated_acquire_keeps_its_place(desk):
    """While a request waits, asking again only tells its position."""
    desk.worker()
    edge = desk.edge()
    for request_id in ("r1", "r2", "r3"):
        desk.acquire(edge, request_id)
    assert desk.acquire(edge, "r3")[0].position == 2
    assert len(desk.queue) == 2


def test_a_cancelled_head_is_passed_over(desk):
    """Cancel ends a wait; cancelling a granted or unknown request changes nothing."""
    worker, edge = desk.worker(), desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    desk.acquire(edge, "r2")
    desk.acquire(edge, "r3")
    for request_id in ("r1", "r2", "r2", "r9"):
        desk.tell(edge, cancel={"request_id": request_id})
    assert desk.held() == 1
    desk.free(worker, granted.lease_id)
    assert [each.request_id for each in edge.take("granted")] == ["r3"]


def test_an_edge_can_only_touch_its_own(desk):
    """Another edge's leases and requests are out of reach."""
    desk.worker()
    edge, other = desk.edge(), desk.edge("e2")
    (granted,) = desk.acquire(edge, "r1")
    desk.acquire(edge, "r2")
    desk.tell(other, release={"lease_id": granted.lease_id})
    desk.tell(other, lease_lost={"lease_id": granted.lease_id})
    desk.tell(other, cancel={"request_id": "r2"})
    assert desk.held() == 1
    assert len(desk.queue) == 1
    assert desk.book.get(granted.lease_id).state.value == "granted"


def test_a_released_slot_goes_to_the_next(desk):
    """Release is idempotent: only the first one frees a slot."""
    desk.worker()
    edge = desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    desk.acquire(edge, "r2")
    desk.acquire(edge, "r3")
    for _ in range(2):
        desk.tell(edge, release={"lease_id": granted.lease_id})
    assert [each.request_id for each in edge.take("granted")] == ["r2"]
    assert desk.held() == 1


def test_a_started_lease_is_not_released(desk):
    """A Release of what its worker lists is doubted: the worker is asked, the slot stays held."""
    worker, edge = desk.worker(), desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    desk.beat(worker, granted.lease_id)
    worker.take()
    desk.tell(edge, release={"lease_id": granted.lease_id})
    assert [void.lease_id for void in worker.take()] == [granted.lease_id]
    assert desk.held() == 1


def test_a_lost_lease_is_voided_and_held(desk):
    """No time frees it, only its worker."""
    worker, edge = desk.worker(), desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    desk.tell(edge, lease_lost={"lease_id": granted.lease_id})
    desk.tell(edge, release={"lease_id": granted.lease_id})
    assert {void.lease_id for void in worker.take("void")} == {granted.lease_id}
    desk.pass_time(3600)
    assert desk.held() == 1
    desk.free(worker, granted.lease_id)
    assert desk.held() == 0


def test_an_instance_bars_its_worker_while_it_is_that(desk, reasons):
    """What died on a worker is not given to it again, and may go to the process that follows."""
    edge = desk.edge()
    desk.worker("w1")
    (first,) = desk.acquire(edge, "r1", excluded_worker_ids=["i1"])
    assert first.error.reason == reasons["no_worker"]
    desk.worker("w1", "i2")
    (second,) = desk.acquire(edge, "r1", excluded_worker_ids=["i1"])
    assert second.worker_id == "w1"


def test_who_waits_may_go_to_the_process_that_follows(desk):
    """It came while the process that it was lost with was known, and waits when that is no more."""
    desk.worker("w1")
    desk.worker("w2", "i2")
    edge = desk.edge()
    desk.acquire(edge, "r1")
    desk.acquire(edge, "r2")
    (first,) = desk.acquire(edge, "r1", excluded_worker_ids=["i1"], front=True, resume=True)
    assert first.position == 1
    desk.worker("w1", "i3")
    (second,) = edge.take("granted")
    assert (second.request_id, second.instance_id) == ("r1", "i3")


def test_what_was_lost_with_a_process_goes_to_another(desk):
    """Either of two may be barred, by its own id or by its process'."""
    desk.worker("w1", slots=9)
    desk.worker("w2", "i2", slots=9)
    edge = desk.edge()
    for barred, chosen in (("i1", "w2"), ("i2", "w1"), ("w1", "w2"), ("w2", "w1")):
        (granted,) = desk.acquire(edge, f"r-{barred}", excluded_worker_ids=[barred])
        assert granted.worker_id == chosen


def test_excluded_workers_are_not_waited_for(desk, reasons):
    """A request that excludes all workers is refused; others pass one that excludes the free."""
    worker, edge = desk.worker(), desk.edge()
    desk.worker("w2", "i2")
    (first,) = desk.acquire(edge, "r1", excluded_worker_ids=["w2"])
    desk.acquire(edge, "r2")
    assert kinds(desk.acquire(edge, "r3", excluded_worker_ids=["w1"])) == ["Queued"]
    desk.acquire(edge, "r4")
    desk.free(worker, first.lease_id)
    assert [each.request_id for each in edge.take("granted")] == ["r4"]
    (rejected,) = desk.acquire(edge, "r5", excluded_worker_ids=["w1", "w2"])
    assert rejected.error.reason == reasons["no_worker"]


def test_unknown_and_absent_models_are_refused_apart(desk, reasons):
    """A model never seen does not exist; one seen before has no backend now."""
    edge = desk.edge()
    (rejected,) = desk.acquire(edge, "r1", model="x")
    assert rejected.error.reason == reasons["unknown_model"]
    assert rejected.error.message == "model 'x' does not exist"
    assert not rejected.error.HasField("retry_after_ms")
    desk.sessions.of_workers.left(desk.worker(), desk.now)
    desk.pass_time(5)
    (rejected,) = desk.acquire(edge, "r2")
    assert rejected.error.reason == reasons["no_worker"]
    assert rejected.error.message == "no backend is available for this model"
    assert rejected.error.retry_after_ms == 5_000


def test_what_waits_for_a_worker_that_is_gone_is_refused(desk, reasons):
    """When the last worker of a model is gone, its queue learns it at once."""
    worker, edge = desk.worker(), desk.edge()
    desk.acquire(edge, "r1", patience_s=60)
    desk.acquire(edge, "r2", patience_s=60)
    desk.sessions.of_workers.left(worker, desk.now)
    desk.pass_time(4.9)
    assert edge.take("rejected") == []
    desk.pass_time(0.1)
    (rejected,) = edge.take("rejected")
    assert (rejected.request_id, rejected.error.reason) == ("r2", reasons["no_worker"])


def test_after_the_start_everything_waits(new_desk, reasons):
    """Until the view is complete nothing is refused for what is missing, or for the bound."""
    desk = new_desk(warm_up_s=2.0, queue_per_slot=0.0)
    edge = desk.edge()
    assert kinds(desk.acquire(edge, "r1")) == ["Queued"]
    assert kinds(desk.acquire(edge, "r2", model="x")) == ["Queued"]
    (rejected,) = desk.acquire(edge, "r3", model="x", patience_s=0)
    assert rejected.error.reason == reasons["no_worker"]
    desk.pass_time(1.5)
    desk.worker()
    assert [each.request_id for each in edge.take("granted")] == ["r1"]
    desk.pass_time(0.5)
    (rejected,) = edge.take("rejected")
    assert (rejected.request_id, rejected.error.reason) == ("r2", reasons["unknown_model"])
    assert len(desk.queue) == 0


def test_a_draining_worker_finishes_and_takes_nothing(desk, reasons):
    """What it runs stays; what waits for it alone is refused."""
    worker, edge = desk.worker(slots=2), desk.edge()
    desk.acquire(edge, "r1")
    desk.beat(worker, state="WORKER_STATE_DRAINING")
    (rejected,) = desk.acquire(edge, "r2")
    assert rejected.error.reason == reasons["no_worker"]
    assert desk.held() == 1
    desk.beat(worker, state="WORKER_STATE_SERVING")
    assert kinds(desk.acquire(edge, "r3")) == ["Granted"]


def test_accounts_take_turns(desk):
    """Who sends one request is not behind another's many."""
    worker, edge = desk.worker(), desk.edge()
    (grant,) = desk.acquire(edge, "a0", account_id="a")
    for number in (1, 2):
        desk.acquire(edge, f"a{number}", account_id="a")
    assert desk.acquire(edge, "b1", account_id="b")[0].position == 1
    assert desk.acquire(edge, "b2", account_id="b")[0].position == 3
    assert turns(desk, worker, edge, grant, 4) == ["b1", "a1", "b2", "a2"]


def test_tokens_weigh_per_generation(desk):
    """Of a request of several generations each slot costs its part of the estimate."""
    worker, edge = desk.worker(), desk.edge()
    (grant,) = desk.acquire(edge, "x", account_id="x")
    desk.acquire(edge, "a", account_id="a", generations=range(4), token_estimate=40)
    desk.acquire(edge, "b1", account_id="b", token_estimate=21)
    desk.acquire(edge, "b2", account_id="b", token_estimate=21)
    order = turns(desk, worker, edge, grant, 6)
    assert [each[0] for each in order] == list("abaaba")


def test_full_queue(new_desk, reasons):
    """The newest of the account with most makes way for one with fewer, and has cost nothing."""
    desk = new_desk(queue_per_slot=3)
    desk.worker()
    edge, other = desk.edge(), desk.edge("e2")
    for number in range(4):
        desk.acquire(other, f"a{number}", account_id="a", generations=[0, 1])
    limited = {"account_limits": {"requests_per_minute": 100}, "account_id": "a"}
    assert kinds(desk.acquire(other, "a4", **limited)) == ["Rejected"]
    assert desk.acquire(edge, "b1", account_id="b")[0].position == 1
    (rejected,) = other.take("rejected")
    assert (rejected.request_id, list(rejected.generations)) == ("a2", [0, 1])
    assert (rejected.error.reason, rejected.error.message) == (reasons["queue_full"], AT_CAPACITY)
    assert rejected.error.retry_after_ms >= 1_000
    assert kinds(desk.acquire(other, "a5", **limited)) == ["Rejected"]
    assert [each.request_id for each in desk.queue.line("tiny")] == ["b1", "a0", "a1"]
    assert len(desk.sessions.admission.limits.in_flight()) == 3


def test_what_was_running_waits_ahead_of_all(new_desk):
    """A resumed request needs no room in the queue, and waits as long as it says."""
    desk = new_desk(queue_per_slot=2)
    worker, edge = desk.worker(), desk.edge()
    (granted,) = desk.acquire(edge, "r1")
    desk.acquire(edge, "r2")
    desk.acquire(edge, "r1", front=True)
    (queued,) = desk.acquire(edge, "r3", resume=True, patience_s=30, generations=[0])
    assert queued.position == 1
    desk.pass_time(29)
    assert {each.request_id for each in edge.take("rejected")} == {"r1", "r2"}
    assert desk.acquire(edge, "r4")[0].position == 2
    desk.free(worker, granted.lease_id)
    assert [each.request_id for each in edge.take("granted")] == ["r3"]


def test_what_was_running_waits_without_a_queue_too(new_desk, reasons):
    """Where nothing else may wait at all, and until its own time is over."""
    desk = new_desk(queue_per_slot=0)
    desk.worker()
    edge = desk.edge()
    desk.acquire(edge, "r1")
    assert kinds(desk.acquire(edge, "r2", resume=True, patience_s=30)) == ["Queued"]
    desk.pass_time(30)
    (rejected,) = edge.take("rejected")
    assert rejected.error.reason == reasons["queue_timeout"]


def test_what_cannot_go_elsewhere_holds_up_nobody(desk):
    """Behind one that excludes the worker with the free slot, others of all kinds get it."""
    worker, edge = desk.worker(), desk.edge()
    desk.worker("w2", "i2")
    (first,) = desk.acquire(edge, "r1", excluded_worker_ids=["w2"])
    desk.acquire(edge, "r2", excluded_worker_ids=["w1"])
    for number in range(4):
        barred = {"excluded_worker_ids": ["w1"], "front": True, "resume": number % 2 == 0}
        desk.acquire(edge, f"x{number}", **barred)
    desk.acquire(edge, "a", account_id="a")
    desk.acquire(edge, "f", front=True)
    assert turns(desk, worker, edge, first, 2) == ["f", "a"]


def test_what_comes_back_is_not_charged_again(desk):
    """A refused lease, and a generation that goes on elsewhere, cost their account no turn."""
    worker, edge = desk.worker(slots=2), desk.edge()
    (first,) = desk.acquire(edge, "x", account_id="x")
    (second,) = desk.acquire(edge, "b0", account_id="b")
    desk.acquire(edge, "a1", account_id="a", front=True, token_estimate=100)
    desk.acquire(edge, "a2", account_id="a", resume=True, token_estimate=100)
    for granted in (first, second):
        desk.free(worker, granted.lease_id)
    first, second = edge.take("granted")
    assert (first.request_id, second.request_id) == ("a2", "a1")
    desk.acquire(edge, "b3", account_id="b")
    desk.acquire(edge, "a3", account_id="a")
    desk.free(worker, first.lease_id)
    assert [each.request_id for each in edge.take("granted")] == ["a3"]


def test_what_was_running_stays_ahead_when_a_part_of_it_goes_on(desk, reasons):
    """Of several generations those without a slot wait on before all, until their time is over."""
    worker, edge = desk.worker(slots=2), desk.edge()
    (first,) = desk.acquire(edge, "r1")
    desk.acquire(edge, "r2", resume=True, patience_s=30, generations=[0, 1, 2])
    desk.acquire(edge, "f", front=True)
    desk.free(worker, first.lease_id)
    assert [(each.request_id, each.generation) for each in edge.take("granted")] == [("r2", 1)]
    desk.pass_time(30)
    assert [(each.request_id, each.error.reason) for each in edge.take("rejected")] == [
        ("f", reasons["queue_timeout"]),
        ("r2", reasons["queue_timeout"]),
    ]


def test_nobody_makes_way_for_what_joins_a_request(new_desk):
    """A generation that is asked for later waits with its siblings, outside the bound."""
    desk = new_desk(queue_per_slot=3)
    desk.worker()
    edge = desk.edge()
    desk.acquire(edge, "a0", account_id="a")
    for number in (1, 2):
        desk.acquire(edge, f"a{number}", account_id="a")
    desk.acquire(edge, "b1", account_id="b", generations=[0])
    assert kinds(desk.acquire(edge, "b1", account_id="b", generations=[0, 1])) == ["Queued"]
    assert desk.queue.line("tiny").requests == 3
