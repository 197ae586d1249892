"""Workers that come, fall silent, leave and are replaced."""

import pytest

from fastrun.v1.scheduler_pb2 import Heartbeat, WorkerHello
from scheduler.fleet import FencedError, Fleet


@pytest.fixture
def fleet():
    return Fleet(suspect_after_s=3.0, gone_after_s=5.0, forget_after_s=60.0)


def join(fleet, instance_id="i1", *, worker_id="w1", slots=2, model="m", now=0.0):
    hello = WorkerHello(
        worker_id=worker_id, instance_id=instance_id, slots=slots, model={"model": model}
    )
    worker, former = fleet.join(hello, object(), now)
    fleet.confirm(worker, now)
    return worker, former


def test_silence_makes_a_suspect(fleet):
    """Without a heartbeat for 3 s a worker is suspect, until it says something."""
    worker, _ = join(fleet)
    assert [worker.state(now) for now in (0.0, 2.9, 3.0)] == ["serving", "serving", "suspect"]
    fleet.beat(worker, Heartbeat(running_lease_ids=["l1"]), 4.0)
    assert worker.state(6.9) == "serving"
    assert worker.listed == {"l1"}


def test_a_worker_without_a_session_is_suspect_then_gone(fleet):
    """It is gone 5 s after its session has ended, and takes nothing from then on."""
    worker, _ = join(fleet)
    fleet.leave(worker, 1.0)
    assert worker.state(1.0) == "suspect"
    assert worker.takes_requests
    assert fleet.next_due() == 6.0
    assert fleet.expire(5.9) == ([], [])
    assert fleet.expire(6.0) == ([worker], [])
    assert worker.state(6.0) == "gone"
    assert not fleet.ready("m")
    assert fleet.slots("m") == 0


def test_a_worker_that_comes_back_is_not_gone(fleet):
    """A Hello of the same process undoes all of it."""
    worker, _ = join(fleet)
    fleet.leave(worker, 1.0)
    fleet.expire(6.0)
    back, former = join(fleet, now=7.0)
    assert former is worker
    assert back.state(7.0) == "serving"
    assert fleet.next_due() is None
    assert fleet.instance("i1") is back
    assert fleet.workers() == [back]


def test_a_new_process_replaces_and_fences_the_old(fleet):
    """The old process may not come back while the new one has a session."""
    old, _ = join(fleet)
    new, former = join(fleet, "i2")
    assert former is old
    assert fleet.instance("i1") is None
    with pytest.raises(FencedError):
        join(fleet)
    assert fleet.workers() == [new]


def test_the_hello_of_a_dead_process_can_come_late(fleet):
    """A process that was replaced by mistake is heard again when the other has no session."""
    join(fleet, "i2")
    dead, _ = join(fleet, "i1")
    with pytest.raises(FencedError):
        join(fleet, "i2")
    fleet.leave(dead, 1.0)
    alive, former = join(fleet, "i2", now=2.0)
    assert former is dead
    assert fleet.workers() == [alive]


def test_a_process_is_one_worker(fleet):
    """The same process may not join under a second id."""
    join(fleet)
    with pytest.raises(FencedError):
        join(fleet, worker_id="w2")


def test_a_worker_that_is_gone_for_long_is_forgotten(fleet):
    """After its time a gone worker is shown no more; its model stays known."""
    worker, _ = join(fleet)
    fleet.leave(worker, 0.0)
    fleet.expire(5.0)
    assert fleet.next_due() == 60.0
    assert fleet.expire(60.0) == ([], [worker])
    assert fleet.workers() == []
    assert fleet.next_due() is None
    assert list(fleet.cards) == ["m"]


def test_slots_of_a_model_are_those_of_its_workers(fleet):
    """Workers of other models do not count."""
    join(fleet)
    join(fleet, "i2", worker_id="w2", slots=3)
    join(fleet, "i3", worker_id="w3", model="n")
    assert [fleet.slots(model) for model in ("m", "n", "o")] == [5, 2, 0]
    assert [fleet.ready(model) for model in ("m", "o")] == [True, False]
