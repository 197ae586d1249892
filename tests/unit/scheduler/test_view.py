"""What an operator sees."""

from fastrun.service.config import MOST
from fastrun.v1.worker_pb2 import Gpu
from scheduler.view import WORKERS_AT_ONCE, drift, fleet_view


def seen(desk):
    *_, view = fleet_view(desk.sessions, drift_after_s=5.0, now=desk.now)
    return view


def test_the_view_shows_workers_queues_and_edges(desk):
    """Slots in use are leases held, in whatever state."""
    worker, edge = desk.worker(slots=1), desk.edge()
    desk.acquire(edge, "r1")
    desk.acquire(edge, "r2")
    desk.beat(worker, waiting=3)
    view = seen(desk)
    (only,) = view.workers
    assert (only.worker_id, only.instance_id, only.address) == ("w1", "i1", "i1:1")
    assert (only.model, only.state, only.slots, only.slots_in_use) == ("tiny", "serving", 1, 1)
    assert only.heartbeat.waiting == 3
    assert [(each.model, each.waiting, each.bound) for each in view.queues] == [("tiny", 1, 4)]
    assert (view.drift, view.edges, view.term) == (0, 1, 1)


def test_a_worker_is_shown_as_it_says_it_is(desk):
    """Its version, and the GPUs that it computes on."""
    gpus = [Gpu(name="NVIDIA H200", memory_bytes=140 << 30)] * 2
    desk.worker(version="1.2.3", gpus=gpus)
    (only,) = seen(desk).workers
    assert (only.version, list(only.gpus)) == ("1.2.3", gpus)


def test_a_fleet_of_any_size_is_shown(desk):
    """A bound that no message holds is shown as the largest that is: the queue is as good as open."""
    desk.worker(slots=(1 << 32) - 1)
    (queue,) = seen(desk).queues
    assert queue.bound == MOST


def test_states_have_names(desk):
    """Serving, draining, failing, suspect and gone, as time and words decide."""
    workers = [desk.worker(f"w{number}", f"i{number}") for number in range(5)]
    desk.sessions.of_workers.left(workers[4], desk.now)
    desk.pass_time(5)
    desk.beat(workers[0])
    desk.beat(workers[1], state="WORKER_STATE_DRAINING")
    desk.beat(workers[2])
    for _ in range(5):
        desk.tell(desk.edge(), worker_failed={"instance_id": "i2"})
    states = [each.state for each in seen(desk).workers]
    assert states == ["serving", "draining", "failing", "suspect", "gone"]


def test_drift_is_what_is_held_and_not_listed_for_long(desk):
    """A lease counts after 5 s without being listed by a worker that is not gone."""
    worker, edge = desk.worker(slots=2), desk.edge()
    (first,) = desk.acquire(edge, "r1")
    desk.acquire(edge, "r2")

    def now_drifts():
        return sum(
            drift(worker, desk.book, after_s=5.0) for worker in desk.sessions.fleet.workers()
        )

    desk.pass_time(5)
    desk.beat(worker, first.lease_id)
    assert now_drifts() == 0
    desk.pass_time(0.1)
    desk.beat(worker, first.lease_id)
    assert now_drifts() == 1
    desk.sessions.of_workers.left(worker, desk.now)
    desk.pass_time(5)
    assert now_drifts() == 0


def test_who_comes_back_is_given_time_to_list(desk):
    """What has ended while a worker was away is drift only if it is not freed in 5 s."""
    worker = desk.worker()
    (lease,) = desk.acquire(desk.edge(), "r1")
    desk.beat(worker, lease.lease_id)
    desk.pass_time(60)
    back = desk.worker()  # another Hello, without that lease
    desk.beat(back)
    assert seen(desk).drift == 0
    desk.pass_time(5.1)
    desk.beat(back)
    assert seen(desk).drift == 1


def test_a_silent_worker_cannot_list(desk):
    """What was granted after a worker's last heartbeat is no drift, however long that is ago."""
    desk.beat(desk.worker())
    desk.acquire(desk.edge(), "r1")
    desk.pass_time(60)
    assert seen(desk).drift == 0


def test_in_parts(desk):
    """A large fleet is described in parts, between which requests can be answered."""
    for number in range(2 * WORKERS_AT_ONCE):
        desk.worker(f"i{number}", f"w{number}")

    parts = fleet_view(desk.sessions, drift_after_s=5.0, now=desk.now)

    shown = [len(view.workers) for view in parts]
    assert shown == [WORKERS_AT_ONCE, 2 * WORKERS_AT_ONCE, 2 * WORKERS_AT_ONCE]
