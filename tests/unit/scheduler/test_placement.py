"""Which worker gets a request."""

from fastrun.v1.worker_pb2 import ModelCard
from scheduler import placement
from scheduler.fleet import Worker

NOW = 100.0


def worker(worker_id, *, slots=4, suspect=False, gone=False, draining=False, granted_at=0.0):
    return Worker(
        worker_id=worker_id,
        instance_id=worker_id,
        address="h:1",
        card=ModelCard(model="m"),
        slots=slots,
        link=None,
        suspect_at=NOW if suspect else NOW + 1,
        gone=gone,
        granted_at=granted_at,
        draining=draining,
    )


def choose(*workers, held=None, excluded=()):
    chosen = placement.choose(
        workers, held=lambda each: (held or {}).get(each, 0), excluded=set(excluded), now=NOW
    )
    return chosen and chosen.worker_id


def test_the_least_loaded_is_chosen():
    """Load is the share of slots that are held."""
    assert choose(worker("a", slots=2), worker("b", slots=8), held={"a": 1, "b": 3}) == "b"


def test_a_full_worker_is_never_chosen():
    """Without a free slot nobody is chosen."""
    assert choose(worker("a"), held={"a": 4}) is None
    assert choose(worker("a", slots=0)) is None


def test_who_may_not_take_requests_is_never_chosen():
    """Neither gone nor draining nor excluded workers get anything."""
    assert choose(worker("a", gone=True), worker("b", draining=True)) is None
    assert choose(worker("a"), worker("b"), excluded=["a"], held={"b": 3}) == "b"


def test_a_suspect_is_the_last_choice():
    """A suspect worker is used when no other one has a slot, and among suspects load decides."""
    busy, idle = worker("busy"), worker("idle", suspect=True)
    assert choose(idle, busy, held={"busy": 3}) == "busy"
    assert choose(idle, busy, held={"busy": 4}) == "idle"
    assert choose(idle, worker("b", suspect=True), held={"idle": 1}) == "b"


def test_equals_take_turns():
    """Among equally loaded workers the one granted longest ago is chosen."""
    assert choose(worker("a", granted_at=2.0), worker("b", granted_at=1.0)) == "b"


def test_free_slots_are_those_that_could_be_chosen():
    """Over all workers that may be chosen, and no more than are wanted."""
    workers = [worker("a"), worker("b", suspect=True), worker("gone", gone=True), worker("x")]

    def free(wanted):
        return placement.free_slots(
            workers, held=lambda each: 3 if each == "a" else 0, excluded={"x"}, wanted=wanted
        )

    assert [free(wanted) for wanted in (1, 4, 128)] == [1, 4, 5]


def test_more_leases_than_slots_are_no_free_slots():
    """A worker that comes back with fewer slots than it runs takes nothing from the others."""
    workers = [worker("a", slots=1), worker("b", slots=1)]
    held = {"a": 3, "b": 0}
    assert placement.free_slots(workers, held=held.get, excluded=set(), wanted=8) == 1


def test_a_busy_worker_is_a_possible_one():
    """A request can wait for a busy worker, not for one that will never take it."""
    assert placement.possible([worker("a")], set())
    assert not placement.possible([worker("a")], {"a"})
    assert not placement.possible([worker("a", gone=True), worker("b", draining=True)], set())
