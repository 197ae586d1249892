"""When a worker that drains has left, and what is said of it then."""

from fastrun.cli.draining import Watched, requests
from fastrun.v1.scheduler_pb2 import (
    DrainWorkerResponse,
    Heartbeat,
    WatchFleetResponse,
    WorkerStatus,
)

BEGUN = DrainWorkerResponse(instance_id="i1", slots_in_use=3)


def fleet(*workers):
    """Return a fleet of (worker, instance, state, moved)."""
    return WatchFleetResponse(
        workers=[
            WorkerStatus(
                worker_id=name, instance_id=instance, state=state, heartbeat=Heartbeat(moved=moved)
            )
            for name, instance, state, moved in workers
        ]
    )


def test_it_has_left_when_it_is_gone():
    """Until then it drains, and after its session's end it may yet come back."""
    watched = Watched("w1", BEGUN, restart=False)
    for state, moved in (("serving", 0), ("draining", 0), ("draining", 2), ("suspect", 2)):
        assert watched.see(fleet(("w2", "i9", "serving", 5), ("w1", "i1", state, moved))) is None
    left = watched.see(fleet(("w1", "i1", "gone", 2)))
    assert str(left) == "w1 has gone: 3 requests ran, 2 moved"


def test_a_new_process_of_it_means_that_it_has_left():
    """What counts is what the old one said last; the new one has to have joined."""
    watched = Watched("w1", BEGUN, restart=True)
    assert watched.see(fleet(("w1", "i1", "draining", 1))) is None
    assert watched.see(fleet(("w1", "i1", "gone", 1))) is None
    assert watched.see(fleet(("w1", "i2", "joining", 0))) is None
    left = watched.see(fleet(("w1", "i2", "serving", 0)))
    assert str(left) == "w1 is back as a new process: 3 requests ran, 1 moved"


def test_one_that_is_forgotten_has_left():
    """Unless it is waited for until it is back."""
    assert not Watched("w1", BEGUN, restart=False).see(fleet()).back
    assert Watched("w1", BEGUN, restart=True).see(fleet()) is None


def test_requests():
    """One is one."""
    assert [requests(count) for count in (0, 1, 2)] == ["0 requests", "1 request", "2 requests"]
