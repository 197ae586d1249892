from fastrun import __version__
from fastrun.cli.doctor import protocol
from fastrun.cli.doctor.finding import State
from fastrun.cli.doctor.fleet import check
from fastrun.v1.scheduler_pb2 import WatchFleetResponse, WorkerStatus


def worker(**more):
    return WorkerStatus(
        **{
            "worker_id": "gpu-1",
            "address": "10.0.0.1:7003",
            "model": "m",
            "state": "serving",
            "version": __version__,
            **more,
        }
    )


def states(**fleet):
    return [(found.state, found.says) for found in check(WatchFleetResponse(**fleet))]


def test_good():
    """A worker that serves, and is of our version, is well."""
    assert {state for state, _ in states(workers=[worker()])} == {State.OK}


def test_other_version():
    """A worker and an edge of a version that does not fit are named."""
    found = states(workers=[worker(version="9.0.0")], edge_versions=["8.0.0"])

    wrong = [says for state, says in found if state is State.WRONG]
    assert "the worker gpu-1 at 10.0.0.1:7003 is fastrun 9.0.0 and this one is" in wrong[0]
    assert "the edge is fastrun 8.0.0" in wrong[1]


def test_apart(monkeypatch):
    """Edges and workers that each fit our version, and not one another, are told."""
    monkeypatch.setattr(protocol, "__version__", "0.2.0")
    found = states(workers=[worker(version="0.3.1")], edge_versions=["0.1.0", "0.2.0"])

    (wrong,) = [says for state, says in found if state is State.WRONG]
    assert wrong.startswith("fastrun 0.1.0 and 0.3.1 run beside each other and do not speak")


def test_no_version():
    """A worker that says no version is too old for that."""
    ((state, says),) = [each for each in states(workers=[worker(version="")]) if "older" in each[1]]

    assert state is State.WRONG
    assert says.endswith("upgrade it")


def test_states():
    """What a worker's state means is told, and no fleet is a warning."""
    assert states()[0][0] is State.WARNING
    assert states(workers=[worker(state="failing")])[0] == (
        State.WARNING,
        "worker gpu-1 fails requests: see its log",
    )
    assert states(workers=[worker(state="gone", version="")]) == [
        (State.WARNING, "worker gpu-1 is gone: start it, or wait until it is forgotten")
    ]


def test_a_worker_that_was_drained():
    """That it is gone was asked for, unless its engine had died or it left something behind."""
    drained = {"state": "gone", "heartbeat": {"state": "WORKER_STATE_DRAINING"}}
    assert states(workers=[worker(**drained)]) == [
        (State.SKIPPED, "worker gpu-1 has drained, and is gone")
    ]
    assert states(workers=[worker(**{**drained, "state": "suspect"})])[0] == (
        State.SKIPPED,
        "worker gpu-1 has drained, and leaves",
    )
    dead = {"state": "gone", "heartbeat": {**drained["heartbeat"], "engine_dead": True}}
    silent = {"state": "suspect"}
    for other in (dead, {**drained, "slots_in_use": 1}, silent):
        assert states(workers=[worker(**other)])[0][0] is State.WARNING


def test_drift():
    """Books that are wrong are told."""
    assert "2 leases are held that no worker lists" in states(drift=2)[-1][1]
