"""What an operator sees of the fleet."""

from fastrun.v1.scheduler_pb2 import QueueStatus, WatchFleetResponse, WorkerStatus
from scheduler.fleet import Fleet, Worker
from scheduler.leases import LeaseBook
from scheduler.sessions import Sessions


def drift(fleet: Fleet, leases: LeaseBook, *, after_s: float, now: float) -> int:
    """Count the leases held for over ``after_s`` that their worker does not list.

    Those of a gone worker hold its slots and nothing else: they do not count.
    """
    return sum(
        now - lease.held_since > after_s and lease.lease_id not in worker.listed
        for worker in fleet.workers()
        if not worker.gone
        for lease in leases.of_instance(worker.instance_id)
    )


def fleet_view(sessions: Sessions, *, drift_after_s: float, now: float) -> WatchFleetResponse:
    """Describe all workers and queues at a moment (monotonic seconds).

    A scheduler that stands by has no books: it tells what the workers say.
    """
    fleet, admission, leads = sessions.fleet, sessions.admission, sessions.leader.leads
    workers = [
        WorkerStatus(
            worker_id=worker.worker_id,
            instance_id=worker.instance_id,
            address=worker.address,
            model=worker.card.model,
            state=worker.state(now) if leads else _state_without_term(worker, now),
            slots=worker.slots,
            slots_in_use=(
                admission.leases.held(worker.instance_id) if leads else len(worker.listed)
            ),
            heartbeat=worker.heartbeat,
        )
        for worker in sorted(fleet.workers(), key=lambda worker: worker.worker_id)
    ]
    queues = [
        QueueStatus(
            model=model,
            waiting=admission.queue.line(model).requests,
            bound=admission.refusals.bound(model),
        )
        for model in sorted(fleet.cards)
    ]
    return WatchFleetResponse(
        workers=workers,
        queues=queues,
        drift=drift(fleet, admission.leases, after_s=drift_after_s, now=now),
        edges=len(sessions.edges.connected()),
        term=sessions.leader.highest,
        leads=leads,
    )


def _state_without_term(worker: Worker, now: float) -> str:
    state = worker.state(now)
    return "serving" if state == "joining" else state
