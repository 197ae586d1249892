"""What happens when edges and workers come, speak, fall silent, leave and come back.

After a start the books are empty. They are rebuilt from what workers say in their Hello; so that
no slot is counted free that is not, a worker gets nothing before it.
"""

from typing import Any, TypeVar

import structlog

from fastrun.service import leases as signed
from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.scheduler_pb2 import (
    Drain,
    DrainWorkerResponse,
    EdgeHello,
    EdgeMessage,
    EdgeReply,
    EdgeWelcome,
    Heartbeat,
    LeaseClaims,
    ModelList,
    ModelState,
    Welcome,
    WorkerCommand,
    WorkerHello,
    WorkerReport,
)
from scheduler.admission import Admission
from scheduler.breaker import BreakerPolicy
from scheduler.config import Config
from scheduler.edges import Edge, Edges
from scheduler.fleet import Fleet, Worker
from scheduler.leader import Leadership
from scheduler.leases import LeaseState
from scheduler.ports import Chance, EdgeLink, Recorder, WorkerLink

log = structlog.get_logger()

LinkT = TypeVar("LinkT", EdgeLink, WorkerLink)


class ProtocolError(Exception):
    """The peer does not speak as it must; its session ends."""


class Sessions:
    """Every session with edges and workers; times are monotonic seconds."""

    def __init__(self, config: Config, *, now: float, chance: Chance, recorder: Recorder) -> None:
        self.fleet = Fleet(
            suspect_after_s=config.suspect_after_s,
            gone_after_s=config.gone_after_s,
            forget_after_s=config.forget_after_s,
            breaker=BreakerPolicy(failures=config.breaker_failures, open_s=config.breaker_open_s),
        )
        self.edges = Edges(gone_after_s=config.gone_after_s)
        self.leader = Leadership(chance.new_key)
        self.admission = Admission(
            config,
            fleet=self.fleet,
            edges=self.edges,
            leader=self.leader,
            chance=chance,
            recorder=recorder,
        )
        self._settles_at = now + config.warm_up_s
        self._models = ModelList()
        self._edge_links: dict[EdgeLink, Edge] = {}
        self._worker_links: dict[WorkerLink, Worker] = {}
        # Sessions that a newer one of the same peer has replaced: what they still say is ignored.
        self._replaced: set[EdgeLink | WorkerLink] = set()

    # Edges

    def edge_said(self, link: EdgeLink, message: EdgeMessage, now: float) -> None:
        """Take one item from an edge.

        Raises:
            ProtocolError: the first item is no Hello.
        """
        if link in self._replaced:
            return
        edge = self._edge_links.get(link)
        if edge is None:
            self._edge_hello(link, message, now)
            return
        match message.WhichOneof("item"):
            case "acquire":
                self.admission.acquire(edge, message.acquire, now)
            case "release":
                self.admission.release(edge, message.release.lease_id, now)
            case "cancel":
                self.admission.cancel(edge, message.cancel.request_id, now)
            case "lease_lost":
                self.admission.lost(edge, message.lease_lost.lease_id, now)
            case "worker_failed":
                failed = message.worker_failed
                self.admission.failed(failed.instance_id, failed.lease_id, now)

    def edge_left(self, link: EdgeLink, now: float) -> None:
        """Note that a session has ended; if a newer one has replaced it, that one stays."""
        self._replaced.discard(link)
        edge = self._edge_links.pop(link, None)
        if edge is None:
            return
        self.admission.withdraw(edge.edge_id, now)
        self.edges.leave(edge, now)
        log.info("edge_left", edge_id=edge.edge_id)

    def _edge_hello(self, link: EdgeLink, message: EdgeMessage, now: float) -> None:
        if message.WhichOneof("item") != "hello" or not message.hello.edge_id:
            raise ProtocolError("the first item must be a Hello with an edge_id")
        hello: EdgeHello = message.hello
        self._hear(hello.edge_id, hello.term)
        edge, former = self.edges.join(hello, link)
        if former is not None and former.link is not None:
            self.admission.withdraw(edge.edge_id, now)
            self._replace(former.link, self._edge_links)
        self._edge_links[link] = edge
        self._welcome_edge(link, edge)
        for lease in self.admission.leases.of_edge(edge.edge_id):
            if lease.lease_id not in edge.listed and lease.state is not LeaseState.VOIDING:
                self.admission.void(lease)
        log.info("edge_joined", edge_id=edge.edge_id)

    # Workers

    def worker_said(self, link: WorkerLink, report: WorkerReport, now: float) -> None:
        """Take one item from a worker.

        Raises:
            ProtocolError: the first item is no Hello.
            FencedError: it is the Hello of a process that has been replaced.
        """
        if link in self._replaced:
            return
        worker = self._worker_links.get(link)
        if worker is None:
            self._worker_hello(link, report, now)
            return
        match report.WhichOneof("item"):
            case "heartbeat":
                self._heartbeat(worker, report.heartbeat, now)
            case "slot_freed":
                freed = report.slot_freed
                usage = freed.usage if freed.HasField("usage") else None
                self.admission.freed(worker, freed.lease_id, usage, now)

    def drain(self, worker_id: str, deadline_ms: int | None) -> DrainWorkerResponse:
        """Pass a Drain on to a worker; it says itself from when on it drains.

        Args:
            worker_id: which.
            deadline_ms: what its running requests have; None: as long as its own setting says.

        Raises:
            ServiceError: there is no such worker, or it has no session.
        """
        workers = {worker.worker_id: worker for worker in self.fleet.workers()}
        worker = workers.get(worker_id)
        if worker is None:
            known = ", ".join(sorted(workers))
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
        worker.link.send(WorkerCommand(drain=Drain(deadline_ms=deadline_ms)))
        log.info("worker_told_to_drain", worker_id=worker_id, instance_id=worker.instance_id)
        return DrainWorkerResponse(
            instance_id=worker.instance_id,
            slots_in_use=self.admission.leases.held(worker.instance_id),
        )

    def worker_left(self, link: WorkerLink, now: float) -> None:
        """Note that a session has ended; if a newer one has replaced it, that one stays."""
        self._replaced.discard(link)
        worker = self._worker_links.pop(link, None)
        if worker is None:
            return
        self.fleet.leave(worker, now)
        log.warning("worker_left", worker_id=worker.worker_id, instance_id=worker.instance_id)

    def _worker_hello(self, link: WorkerLink, report: WorkerReport, now: float) -> None:
        hello: WorkerHello = report.hello
        if not (hello.worker_id and hello.instance_id and hello.address and hello.model.model):
            raise ProtocolError(
                "the first item must be a Hello with worker_id, instance_id, address and model"
            )
        worker, former = self.fleet.join(hello, link, now)
        self.fleet.confirm(worker, now)
        if former is not None and former.link is not None:
            self._replace(former.link, self._worker_links)
        self._hear(hello.instance_id, hello.term)
        self._worker_links[link] = worker
        self._welcome_worker(link, worker)
        if former is not None and former.instance_id != worker.instance_id:
            ended = self.admission.end_instance(former.instance_id, now)
            log.warning(
                "worker_replaced",
                worker_id=worker.worker_id,
                instance_id=worker.instance_id,
                former_instance_id=former.instance_id,
                leases_ended=ended,
            )
        self._reconcile(worker, hello, now)
        log.info(
            "worker_joined",
            worker_id=worker.worker_id,
            instance_id=worker.instance_id,
            model=worker.card.model,
            slots=worker.slots,
        )
        self._models_changed()
        if former is not None and former.card.model != worker.card.model:
            self.admission.review(former.card.model, now)
        self.admission.fill(worker.card.model, now)

    def _reconcile(self, worker: Worker, hello: WorkerHello, now: float) -> None:
        """Bring the books in line with what a worker says it runs, and void what is in doubt."""
        doubtful = set(hello.voided_lease_ids)
        running = set()
        for claims in self._running(worker, hello):
            running.add(claims.lease_id)
            known = self.admission.leases.get(claims.lease_id) is not None
            lease = self.admission.leases.restore(claims, now=now)
            if lease is None or known:
                continue
            edge = self.edges.expect(lease.edge_id, now)
            if edge.link is not None and lease.lease_id not in edge.listed:
                doubtful.add(lease.lease_id)
        worker.listed = frozenset(running)
        self.admission.hold(worker.instance_id, now)
        for lease in self.admission.leases.of_instance(worker.instance_id):
            absent = lease.lease_id not in running
            if absent or lease.lease_id in doubtful or lease.state is LeaseState.VOIDING:
                self.admission.void(lease)

    def _running(self, worker: Worker, hello: WorkerHello) -> list[LeaseClaims]:
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

    def _heartbeat(self, worker: Worker, heartbeat: Heartbeat, now: float) -> None:
        took = worker.takes_requests
        self.fleet.beat(worker, heartbeat, now)
        leases = self.admission.leases
        leases.run(worker.instance_id, heartbeat.running_lease_ids)
        for lease_id in leases.strays(worker.instance_id, heartbeat.running_lease_ids):
            # Started under a former scheduler while this one's Welcome was on its way. It holds a
            # slot all the same; voided, so that the worker says when it is over.
            log.warning("stray_lease", worker_id=worker.worker_id, lease_id=lease_id)
            claims = LeaseClaims(lease_id=lease_id, instance_id=worker.instance_id)
            if stray := leases.restore(claims, now=now):
                self.admission.void(stray)
        if took != worker.takes_requests:
            self._models_changed()
            self.admission.review(worker.card.model, now)
            self.admission.fill(worker.card.model, now)

    def _replace(self, link: LinkT, links: dict[LinkT, Any]) -> None:
        del links[link]
        self._replaced.add(link)
        link.close()

    # Time

    def next_due(self) -> float | None:
        """Return when tick() has something to do next."""
        times = (
            self.admission.queue.next_deadline(),
            self.edges.next_due(),
            self.fleet.next_due(),
            None if self.admission.refusals.complete else self._settles_at,
        )
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float) -> None:
        """Do what is due by now."""
        for edge in self.edges.expire(now):
            log.warning("edge_gone", edge_id=edge.edge_id)
            for lease in self.admission.leases.of_edge(edge.edge_id):
                self.admission.void(lease)
        gone, forgotten = self.fleet.expire(now)
        for worker in forgotten:
            self.admission.end_instance(worker.instance_id, now)
        if not self.admission.refusals.complete and now >= self._settles_at:
            self.admission.settle(now)
        self._models_changed()
        for worker in gone:
            log.warning("worker_gone", worker_id=worker.worker_id)
            self.admission.worker_gone(worker.instance_id, now)
            self.admission.review(worker.card.model, now)
        self.admission.reopen(now)
        self.admission.expire(now)

    def close(self) -> None:
        """End all sessions."""
        for edge_link in self._edge_links:
            edge_link.close()
        for worker_link in self._worker_links:
            worker_link.close()

    # Models

    def models(self) -> ModelList:
        """Return all models that were ever served, and which of them can be now."""
        states = [
            ModelState(card=card, ready=self.fleet.ready(model))
            for model, card in sorted(self.fleet.cards.items())
        ]
        return ModelList(models=states, complete=self.admission.refusals.complete)

    def _models_changed(self) -> None:
        """Tell all edges, if there is news."""
        models = self.models()
        if models == self._models:
            return
        self._models = models
        for link in self._edge_links:
            link.send(EdgeReply(models=models))

    # Term

    def _hear(self, peer_id: str, term: int) -> None:
        if not self.leader.hear(peer_id, term):
            return
        log.warning("term_raised", term=self.leader.term, above=term)
        for edge_link, edge in self._edge_links.items():
            self._welcome_edge(edge_link, edge)
        for worker_link, worker in self._worker_links.items():
            self._welcome_worker(worker_link, worker)

    def _welcome_edge(self, link: EdgeLink, edge: Edge) -> None:
        """Send the models along: an edge heeds only those of the scheduler that leads."""
        link.send(EdgeReply(welcome=EdgeWelcome(term=self.leader.tell(edge.edge_id))))
        link.send(EdgeReply(models=self.models()))

    def _welcome_worker(self, link: WorkerLink, worker: Worker) -> None:
        term = self.leader.tell(worker.instance_id)
        link.send(WorkerCommand(welcome=Welcome(term=term, lease_key=self.leader.lease_key)))
