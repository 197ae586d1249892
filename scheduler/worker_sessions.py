"""What happens when workers come, speak, fall silent, leave and come back."""

from functools import partial

import structlog

from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.scheduler_pb2 import (
    Drain,
    DrainWorkerResponse,
    Heartbeat,
    SlotFreed,
    WorkerCommand,
    WorkerHello,
    WorkerReport,
)
from scheduler.admission import Admission
from scheduler.edges import Edges
from scheduler.faults import do_all
from scheduler.fleet import Fleet, Worker
from scheduler.links import Links, ProtocolError, check_certificate
from scheduler.models import Models
from scheduler.ports import WorkerLink
from scheduler.reconciliation import reconcile, void_missing, void_strays
from scheduler.terms import Terms
from scheduler.usage_log import UsageLog

log = structlog.get_logger()


class WorkerSessions:
    """Every session with a worker; times are monotonic seconds."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        edges: Edges,
        admission: Admission,
        models: Models,
        terms: Terms,
        usage_log: UsageLog,
    ) -> None:
        self._fleet = fleet
        self._edges = edges
        self._admission = admission
        self._models = models
        self._terms = terms
        self._usage_log = usage_log
        self._closed = False
        self._links: Links[WorkerLink, Worker] = Links()

    def said(self, link: WorkerLink, report: WorkerReport, now: float) -> None:
        """Take one item from a worker.

        Raises:
            ProtocolError: the first item is no Hello.
            StrangerError: it is the Hello of a worker with another certificate.
            FencedError: it is the Hello of a process that has been replaced.
        """
        if self._links.is_replaced(link):
            return
        worker, kind = self._links.peer(link), report.WhichOneof("item")
        if worker is None or kind == "hello":
            self._hello(link, report.hello, now)
            return
        try:
            match kind:
                case "heartbeat":
                    self._heartbeat(worker, report.heartbeat, now)
                case "slot_freed":
                    self._slot_freed(worker, report.slot_freed, now)
        except Exception:
            # A fault of ours is this item's; to end the session would let it come again.
            log.exception("worker_item_failed", worker_id=worker.worker_id, item=kind)

    def drain(self, worker_id: str, deadline_ms: int | None) -> DrainWorkerResponse:
        """Pass a Drain on to a worker; it says itself from when on it drains.

        Args:
            worker_id: which.
            deadline_ms: what its running requests have; None: as long as its own setting says.

        Raises:
            ServiceError: there is no such worker, or it has no session.
        """
        worker = self._fleet.worker(worker_id)
        if worker is None:
            known = ", ".join(sorted(each.worker_id for each in self._fleet.workers()))
            raise ServiceError(
                ErrorReason.ERROR_REASON_NOT_FOUND,
                f"there is no worker '{worker_id[:80]}': "
                + (f"use one of {known}" if known else "none has said Hello"),
            )
        if worker.link is None:
            raise ServiceError(
                ErrorReason.ERROR_REASON_CONFLICT,
                f"worker '{worker_id}' has no session now: stop it where it runs",
            )
        worker.send(WorkerCommand(drain=Drain(deadline_ms=deadline_ms)))
        log.info("worker_told_to_drain", worker_id=worker_id, instance_id=worker.instance_id)
        return DrainWorkerResponse(
            instance_id=worker.instance_id,
            slots_in_use=self.slots_in_use(worker),
        )

    def slots_in_use(self, worker: Worker) -> int:
        """Count the slots of a worker that are held, or that it says are while we stand by."""
        if self._terms.leads:
            return self._admission.leases.held(worker.instance_id)
        return len(worker.listed)

    def left(self, link: WorkerLink, now: float) -> None:
        """Note that a session has ended; if a newer one has replaced it, that one stays."""
        worker = self._links.end(link)
        if worker is None:
            return
        self._fleet.leave(worker, now)
        ids = {"worker_id": worker.worker_id, "instance_id": worker.instance_id}
        if self._has_drained(worker):
            log.info("worker_drained", **ids)
        elif not self._closed:
            log.warning("worker_left", **ids)

    def expire(self, now: float) -> None:
        """Forget who has been gone for long, and do without those that are gone from now on."""
        gone, forgotten = self._fleet.expire(now)
        for worker in gone:
            if not self._has_drained(worker):
                log.warning("worker_gone", worker_id=worker.worker_id)
        end_instance, worker_gone = self._admission.end_instance, self._admission.worker_gone
        do_all(
            (
                *(partial(end_instance, worker.instance_id, now) for worker in forgotten),
                self._models.changed,
                *(partial(worker_gone, worker, now) for worker in gone),
            )
        )

    def close(self) -> None:
        """End all sessions: this scheduler stops."""
        self._closed = True
        self._links.close()

    def _hello(self, link: WorkerLink, hello: WorkerHello, now: float) -> None:
        if not (hello.worker_id and hello.instance_id and hello.address and hello.model.model):
            raise ProtocolError(
                "the first item must be a Hello with worker_id, instance_id, address and model"
            )
        before = self._links.peer(link)
        if before is not None and before.instance_id != hello.instance_id:
            raise ProtocolError("one session is of one instance")
        if known := self._fleet.worker(hello.worker_id):
            check_certificate(link, f"worker '{hello.worker_id[:80]}'", known.certificate)
        worker, former = self._fleet.join(hello, link, now)
        worker.certificate = link.certificate
        self._links.bind(link, worker)
        if former is not None and former.instance_id != worker.instance_id:
            # First of all: nothing would end these leases later on.
            self._replaced(worker, former, now)
        if former is not None and former.link not in (None, link):
            self._links.replace(former.link)
        began = self._terms.hear(worker.instance_id, hello.term, now, first=before is None)
        if before is None:
            self._joined(worker, welcomed=began)
        if self._terms.knows(worker.instance_id, hello.term):
            # Before it may be granted anything, its books have to be right.
            reconcile(self._admission, self._edges, worker, hello, now)
            self._fleet.confirm(worker, now)
        self._models.changed()
        if former is not None and former.model != worker.model:
            self._admission.review(former.model, now)
            self._admission.fill(former.model, now)
        self._admission.fill(worker.model, now)

    def _joined(self, worker: Worker, *, welcomed: bool) -> None:
        if not welcomed:
            self._terms.welcome_worker(worker)
        log.info(
            "worker_joined",
            worker_id=worker.worker_id,
            instance_id=worker.instance_id,
            model=worker.model,
            slots=worker.slots,
        )

    def _replaced(self, worker: Worker, former: Worker, now: float) -> None:
        has_drained = self._has_drained(former)
        ended = self._admission.end_instance(former.instance_id, now)
        if not has_drained:
            log.warning(
                "worker_replaced",
                worker_id=worker.worker_id,
                instance_id=worker.instance_id,
                former_instance_id=former.instance_id,
                leases_ended=ended,
            )

    def _has_drained(self, worker: Worker) -> bool:
        """Whether it ends as it was asked to, with nothing that it runs: no news to worry about."""
        asked = worker.draining and not worker.heartbeat.engine_dead
        return asked and not self.slots_in_use(worker)

    def _heartbeat(self, worker: Worker, heartbeat: Heartbeat, now: float) -> None:
        took = worker.takes_requests
        self._fleet.beat(worker, heartbeat, now)
        # What it lists before its Hello of this term, that one may list no more.
        if worker.confirmed:
            self._admission.leases.run(worker.instance_id, heartbeat.running_lease_ids)
            void_strays(self._admission, worker, list(heartbeat.running_lease_ids), now)
            void_missing(self._admission, worker)
        if took != worker.takes_requests:
            self._models.changed()
            self._admission.review(worker.model, now)
            self._admission.fill(worker.model, now)

    def _slot_freed(self, worker: Worker, freed: SlotFreed, now: float) -> None:
        usage = freed.usage if freed.HasField("usage") else None
        granted_here = self._admission.leases.get(freed.lease_id) is not None
        self._admission.freed(worker, freed.lease_id, usage, now)
        if usage is not None and freed.request_id and not granted_here:
            self._usage_log.add(freed.request_id, freed.generation, worker.worker_id, usage, now)
