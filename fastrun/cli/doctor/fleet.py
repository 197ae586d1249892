"""What the scheduler tells of its fleet, held against what should be. Pure."""

from collections.abc import Iterator

from fastrun.cli.doctor import protocol
from fastrun.cli.doctor.finding import Finding, ok, skipped, warning, wrong
from fastrun.v1.scheduler_pb2 import WatchFleetResponse, WorkerState, WorkerStatus

_STATES = {
    "failing": "fails requests: see its log",
    "suspect": "has said nothing for seconds: see if it runs, and if its machine is overloaded",
    "gone": "is gone: start it, or wait until it is forgotten",
}
# Whoever has ended is missed for seconds first.
_LEAVES = {"suspect": "leaves", "gone": "is gone"}


def check(fleet: WatchFleetResponse) -> Iterator[Finding]:
    """Look at the workers of a fleet, and at the books about them."""
    if not fleet.workers:
        yield warning("fleet", "no worker has said Hello: see its log, or let one join")
    for worker in fleet.workers:
        yield _state(worker)
        what = f"worker {worker.worker_id} at {worker.address}"
        if worker.state != "gone":
            yield protocol.check(what, worker.version)
    for version in fleet.edge_versions:
        yield protocol.check("edge", version)
    yield from protocol.apart([*fleet.edge_versions, *(each.version for each in fleet.workers)])
    if fleet.drift:
        yield wrong(
            "fleet",
            f"{fleet.drift} leases are held that no worker lists: this is a fault of fastrun; "
            "drain the worker with slots in use in fastrun fleet, and report it with both logs",
        )


def _state(worker: WorkerStatus) -> Finding:
    problem = _STATES.get(worker.state)
    what = f"worker {worker.worker_id}"
    if worker.state in _LEAVES and _has_drained(worker):
        return skipped("fleet", f"{what} has drained, and {_LEAVES[worker.state]}")
    if problem:
        return warning("fleet", f"{what} {problem}")
    if worker.state != "serving":
        return skipped("fleet", f"{what} is {worker.state}")
    return ok("fleet", f"{what} serves {worker.model}")


def _has_drained(worker: WorkerStatus) -> bool:
    """Whether it has ended as it was asked to."""
    asked = worker.heartbeat.state == WorkerState.WORKER_STATE_DRAINING
    return asked and not (worker.heartbeat.engine_dead or worker.slots_in_use)
