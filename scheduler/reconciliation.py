"""Brings the books in line with what a worker says it runs, and voids what is in doubt."""

import structlog

from fastrun.service import leases as signed
from fastrun.v1.scheduler_pb2 import LeaseClaims, WorkerHello
from scheduler.admission import Admission
from scheduler.edges import Edges
from scheduler.fleet import Worker
from scheduler.leases import LeaseState

log = structlog.get_logger()


def reconcile(
    admission: Admission, edges: Edges, worker: Worker, hello: WorkerHello, now: float
) -> None:
    """Take a Hello of this term: what it lists is all that runs.

    Args:
        admission: its books.
        edges: those that are there; only one that has said Hello in this term can miss a lease.
        worker: who says it.
        hello: what it says.
        now: monotonic seconds.
    """
    doubtful = set(hello.voided_lease_ids)
    running = set()
    for claims in _running(worker, hello):
        running.add(claims.lease_id)
        known = admission.leases.get(claims.lease_id) is not None
        lease = admission.leases.restore(claims, now=now)
        if lease is None or known:
            continue
        edge = edges.expect(lease.edge_id, now)
        if edge.confirmed and edge.link is not None and lease.lease_id not in edge.listed:
            doubtful.add(lease.lease_id)
    worker.listed = frozenset(running)
    admission.hold(worker.instance_id, now)
    for lease in admission.leases.of_instance(worker.instance_id):
        absent = lease.lease_id not in running
        if absent or lease.lease_id in doubtful or lease.state is LeaseState.VOIDING:
            admission.void(lease)


def void_strays(admission: Admission, worker: Worker, listed: list[str], now: float) -> None:
    """Book what a worker runs although nobody could have granted it in this term.

    It holds a slot all the same; voided, so that the worker says when it is over.
    """
    for lease_id in admission.leases.strays(worker.instance_id, listed):
        log.warning("stray_lease", worker_id=worker.worker_id, lease_id=lease_id)
        claims = LeaseClaims(lease_id=lease_id, instance_id=worker.instance_id)
        if stray := admission.leases.restore(claims, now=now):
            admission.void(stray)


def void_missing(admission: Admission, worker: Worker) -> None:
    """Ask a worker to free what it does not list, and has not freed.

    It frees a lease before it lists it no more, and answers each Void. So one of these was lost by
    a fault of ours; what a session lost that has ended, the Hello of the next one brings up.
    """
    for lease in admission.leases.missing(worker.instance_id, worker.listed):
        admission.void(lease)


def _running(worker: Worker, hello: WorkerHello) -> list[LeaseClaims]:
    """Read the leases that a worker runs; one that cannot be read shows up as a stray."""
    claims = []
    for blob in hello.running_leases:
        try:
            each = signed.read(blob)
        except signed.LeaseError:
            log.warning("lease_unreadable", worker_id=worker.worker_id)
            continue
        if each.instance_id == worker.instance_id:
            claims.append(each)
    return claims
