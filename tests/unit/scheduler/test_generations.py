"""Requests with several generations: one place in the queue, a slot for each."""

from fastrun.service import leases
from fastrun.v1.scheduler_pb2 import Granted, Queued


def told(replies):
    """Say in short what an edge was answered: the generation of a grant, or why there is none."""
    return [_told(reply) for reply in replies]


def _told(reply):
    match reply:
        case Granted():
            return reply.generation
        case Queued():
            return "queued"
    return ("rejected", *reply.generations)


def granted(link):
    return [(each.request_id, each.generation) for each in link.take("granted")]


def test_every_generation_gets_a_lease_of_its_own(desk):
    """Each Granted and each lease name their generation; without any named it is the first."""
    desk.worker(slots=4)
    edge = desk.edge()
    grants = desk.acquire(edge, "r1", generations=[0, 1, 2])
    claims = [leases.verify(each.lease, desk.sessions.leader.lease_key) for each in grants]
    assert [each.generation for each in grants] == [0, 1, 2]
    assert [each.generation for each in claims] == [0, 1, 2]
    assert len({each.lease_id for each in grants}) == 3
    assert told(desk.acquire(edge, "r2")) == [0]
    assert desk.held() == 4


def test_eight_generations_share_one_slot(desk):
    """They follow each other, in order; who waits beside them has its turn in between."""
    worker, edge = desk.worker(), desk.edge()
    (first, queued) = desk.acquire(edge, "r1", generations=range(8))
    assert (first.generation, queued.position) == (0, 1)
    assert desk.acquire(edge, "r2")[0].position == 2
    lease_id, order = first.lease_id, []
    for _ in range(8):
        desk.free(worker, lease_id)
        (grant,) = edge.take("granted")
        order.append((grant.request_id, grant.generation))
        lease_id = grant.lease_id
    assert order == [("r1", 1), ("r2", 0), *(("r1", number) for number in range(2, 8))]
    assert len(desk.queue) == 0


def test_slots_of_several_workers_are_taken_at_once(desk):
    """What is free is granted, the least loaded first, and the rest waits for what comes."""
    desk.worker(slots=1)
    desk.worker("w2", "i2", slots=2)
    edge = desk.edge()
    replies = desk.acquire(edge, "r1", generations=range(5))
    assert told(replies) == [0, 1, 2, "queued"]
    assert {each.worker_id for each in replies[:2]} == {"w1", "w2"}
    desk.worker("w3", "i3", slots=4)
    assert granted(edge) == [("r1", 3), ("r1", 4)]
    assert desk.held("i3") == 2


def test_a_request_counts_as_one_however_many_generations_wait(new_desk, reasons):
    """The bound of the queue is in requests, and so is what operators see."""
    desk = new_desk(queue_per_slot=2)
    desk.worker()
    edge = desk.edge()
    desk.acquire(edge, "r1")
    assert told(desk.acquire(edge, "r2", generations=range(8))) == ["queued"]
    assert told(desk.acquire(edge, "r3", generations=range(8))) == ["queued"]
    (rejected,) = desk.acquire(edge, "r4", generations=[0, 1])
    assert told([rejected]) == [("rejected", 0, 1)]
    assert rejected.error.reason == reasons["queue_full"]
    assert desk.rejections == [reasons["queue_full"]]


def test_what_a_slot_was_found_for_waits_outside_the_bound(new_desk):
    """No request is refused in part because the queue is full: not even with no queue at all."""
    desk = new_desk(queue_per_slot=0)
    worker, edge = desk.worker(), desk.edge()
    (first, queued) = desk.acquire(edge, "r1", generations=[0, 1])
    assert told([first, queued]) == [0, "queued"]
    assert told(desk.acquire(edge, "r2", generations=[0, 1])) == [("rejected", 0, 1)]
    desk.free(worker, first.lease_id)
    assert granted(edge) == [("r1", 1)]


def test_no_patience_refuses_all_or_nothing(desk, reasons):
    """What may not wait at all is granted every slot it needs, or none."""
    desk.worker(slots=3)
    edge = desk.edge()
    assert told(desk.acquire(edge, "r1", patience_s=0, generations=[0, 1])) == [0, 1]
    (rejected,) = desk.acquire(edge, "r2", patience_s=0, generations=[0, 1])
    assert told([rejected]) == [("rejected", 0, 1)]
    assert rejected.error.reason == reasons["queue_timeout"]
    assert desk.held() == 2


def test_a_deadline_ends_the_wait_of_all_generations(desk, reasons):
    """One Rejected names them, as long as none of them has begun."""
    desk.worker()
    edge = desk.edge()
    desk.acquire(edge, "r0")
    desk.acquire(edge, "r1", generations=range(3))
    desk.pass_time(10)
    (rejected,) = edge.take("rejected")
    assert list(rejected.generations) == [0, 1, 2]
    assert rejected.error.reason == reasons["queue_timeout"]
    assert (len(desk.queue), desk.held()) == (0, 1)


def test_a_request_that_has_begun_is_not_given_up(desk):
    """Once one generation has its slot, the others wait as long as it takes."""
    worker, edge = desk.worker(), desk.edge()
    (grant, _) = desk.acquire(edge, "r1", generations=range(3))
    for generation in (1, 2):
        desk.pass_time(60)
        assert edge.take("rejected") == []
        desk.free(worker, grant.lease_id)
        (grant,) = edge.take("granted")
        assert grant.generation == generation


def test_all_that_are_left_learn_that_their_worker_is_gone(desk, reasons):
    """Nobody waits for a fleet that is not there."""
    worker, edge = desk.worker(), desk.edge()
    desk.acquire(edge, "r1", patience_s=60, generations=range(3))
    desk.sessions.of_workers.left(worker, desk.now)
    desk.pass_time(5)
    (rejected,) = edge.take("rejected")
    assert list(rejected.generations) == [1, 2]
    assert rejected.error.reason == reasons["no_worker"]


def test_cancel_ends_the_wait_of_all_generations(desk):
    """At all places of the request; leases stay until they are released."""
    worker, edge = desk.worker(), desk.edge()
    (first, _) = desk.acquire(edge, "r1", generations=range(3))
    desk.acquire(edge, "r1", generations=[0], front=True)
    desk.acquire(edge, "r2")
    desk.tell(edge, cancel={"request_id": "r1"})
    assert [each.request_id for each in desk.queue.line("tiny")] == ["r2"]
    assert desk.held() == 1
    desk.free(worker, first.lease_id)
    assert granted(edge) == [("r2", 0)]


def test_a_refused_generation_comes_back_alone(desk):
    """It goes to the front; its siblings keep their leases, and their place behind others."""
    worker, edge = desk.worker(slots=2), desk.edge()
    (first, second, _) = desk.acquire(edge, "r1", generations=range(3))
    desk.acquire(edge, "r2")
    worker.take()
    (queued,) = desk.acquire(edge, "r1", generations=[1], front=True)
    assert queued.position == 1
    assert [void.lease_id for void in worker.take("void")] == [second.lease_id]
    assert desk.queue.line("tiny").requests == 2
    desk.free(worker, second.lease_id)
    assert granted(edge) == [("r1", 1)]
    desk.free(worker, first.lease_id)
    assert granted(edge) == [("r1", 2)]


def test_a_refused_generation_may_avoid_workers_that_its_siblings_use(desk):
    """The workers it excludes are its own affair."""
    first, edge = desk.worker(), desk.edge()
    second = desk.worker("w2", "i2")
    grants = desk.acquire(edge, "r1", generations=range(3))[:2]
    lease = {each.worker_id: each for each in grants}
    failed = lease["w1"].generation
    desk.acquire(edge, "r1", generations=[failed], front=True, excluded_worker_ids=["w1"])
    desk.free(first, lease["w1"].lease_id)
    assert granted(edge) == [("r1", 2)]
    desk.free(second, lease["w2"].lease_id)
    assert granted(edge) == [("r1", failed)]


def test_a_repeated_acquire_asks_again_for_what_is_missing_only(desk):
    """What waits keeps its place, what was granted is voided and asked again, new ones join."""
    worker, edge = desk.worker(), desk.edge()
    (first, _) = desk.acquire(edge, "r1", generations=range(3))
    desk.pass_time(1)
    desk.acquire(edge, "r2")
    worker.take()
    assert desk.acquire(edge, "r1", generations=[1, 2])[0].position == 1
    assert worker.take("void") == []
    (queued,) = desk.acquire(edge, "r1", waited_ms=1000, generations=range(4))
    assert queued.position == 1
    assert [void.lease_id for void in worker.take("void")] == [first.lease_id]
    order, lease_id = [], first.lease_id
    for _ in range(5):
        desk.free(worker, lease_id)
        (grant,) = edge.take("granted")
        order.append((grant.request_id, grant.generation))
        lease_id = grant.lease_id
    assert order == [("r1", 1), ("r1", 0), ("r2", 0), ("r1", 2), ("r1", 3)]


def test_what_joins_a_request_that_waits_is_not_bounded(new_desk):
    """An edge that asks again for a lost grant is not refused in a queue it stands in."""
    desk = new_desk(queue_per_slot=1)
    desk.worker()
    edge = desk.edge()
    desk.acquire(edge, "r1", generations=range(3))
    assert told(desk.acquire(edge, "r2")) == [("rejected", 0)]
    assert told(desk.acquire(edge, "r1", generations=range(3))) == ["queued"]
    assert desk.queue.line("tiny").requests == 1


def test_a_generation_named_twice_needs_one_slot(desk):
    """Neither is one that waits granted a second time."""
    desk.worker(slots=3)
    edge = desk.edge()
    assert told(desk.acquire(edge, "r1", generations=[4, 4, 2])) == [4, 2]
    assert desk.held() == 2


def test_all_generations_that_wait_are_forgotten_with_their_session(desk):
    """The edge asks again for those that it still needs."""
    worker, edge = desk.worker(), desk.edge()
    (first, _) = desk.acquire(edge, "r1", generations=range(3))
    desk.acquire(edge, "r1", generations=[0], front=True)
    desk.sessions.of_edges.left(edge, desk.now)
    assert len(desk.queue) == 0
    back = desk.edge(lease_ids=[first.lease_id])
    assert told(desk.acquire(back, "r1", generations=[1, 2])) == ["queued"]
    desk.free(worker, first.lease_id)
    assert granted(back) == [("r1", 1)]


def test_leases_of_generations_are_told_apart_after_a_restart(desk, new_desk):
    """Asking again for one of them voids that one alone."""
    desk.worker(slots=2)
    grants = desk.acquire(desk.edge(), "r1", generations=[0, 1])
    fresh = new_desk()
    worker = fresh.worker(slots=2, running=[each.lease for each in grants], term=1)
    edge = fresh.edge(lease_ids=[each.lease_id for each in grants], term=1)
    worker.take()
    fresh.acquire(edge, "r1", generations=[1], front=True)
    assert [void.lease_id for void in worker.take("void")] == [grants[1].lease_id]
