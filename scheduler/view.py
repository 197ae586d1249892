"""What an operator sees of the fleet."""

from collections.abc import Iterator

from fastrun.service.config import MOST
from fastrun.v1.scheduler_pb2 import QueueStatus, WatchFleetResponse, WorkerStatus
from scheduler.fleet import Worker
from scheduler.leases import LeaseBook
from scheduler.sessions import Sessions

WORKERS_AT_ONCE = 32


def fleet_view(
    sessions: Sessions, *, drift_after_s: float, now: float
) -> Iterator[WatchFleetResponse]:
    """Describe all workers and queues at a moment (monotonic seconds).

    A scheduler that stands by has no books: it tells what the workers say. Of a thousand workers
    it takes 20 ms, for which no request should have to wait: so it stops now and then.

    Yields:
        The view, which grows from one time to the next, and is whole at the last.
    """
    fleet, admission, leads = sessions.fleet, sessions.admission, sessions.leader.leads
    edges = sessions.edges.connected()
    view = WatchFleetResponse(
        edges=len(edges),
        edge_versions=sorted({edge.version for edge in edges}),
        term=sessions.leader.highest,
        leads=leads,
    )
    workers = sorted(fleet.workers(), key=lambda worker: worker.worker_id)
    for number, worker in enumerate(workers, 1):
        state = worker.state(now) if leads else _state_without_term(worker, now)
        view.workers.append(_status(worker, state, sessions.of_workers.slots_in_use(worker)))
        view.drift += drift(worker, admission.leases, after_s=drift_after_s)
        if number % WORKERS_AT_ONCE == 0:
            yield view
    for model in sorted(fleet.cards):
        line, bound = admission.queue.line(model), admission.refusals.bound(model)
        shown = min(bound, MOST)
        view.queues.append(QueueStatus(model=model, waiting=line.requests, bound=shown))
    yield view


def drift(worker: Worker, leases: LeaseBook, *, after_s: float) -> int:
    """Count the leases that a worker did not list when it held them for over ``after_s``.

    Those of a gone worker hold its slots and nothing else: they do not count. One that is silent
    has listed nothing since, and one that has just come back is being asked to free what has ended
    meanwhile.
    """
    if worker.gone:
        return 0
    return sum(
        worker.listed_at - max(lease.held_since, worker.joined_at) > after_s
        and lease.lease_id not in worker.listed
        for lease in leases.of_instance(worker.instance_id)
    )


def _status(worker: Worker, state: str, slots_in_use: int) -> WorkerStatus:
    return WorkerStatus(
        worker_id=worker.worker_id,
        instance_id=worker.instance_id,
        address=worker.address,
        model=worker.model,
        state=state,
        slots=worker.slots,
        slots_in_use=slots_in_use,
        heartbeat=worker.heartbeat,
        version=worker.version,
        gpus=worker.gpus,
    )


def _state_without_term(worker: Worker, now: float) -> str:
    state = worker.state(now)
    return "serving" if state == "joining" else state
