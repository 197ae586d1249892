"""What happens when edges and workers come, speak, fall silent, leave and come back.

Each term begins with empty books. They are rebuilt from what workers say in their Hello of that
term; so that no slot is counted free that is not, a worker gets nothing before it. A scheduler that
stands by keeps the same sessions and sees the same fleet. It has no books and answers no request.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, TypeVar

import structlog

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
    ModelList,
    ModelState,
    SlotFreed,
    Welcome,
    WorkerCommand,
    WorkerHello,
    WorkerReport,
)
from fastrun.v1.worker_pb2 import ModelCard
from scheduler.admission import Admission
from scheduler.breaker import BreakerPolicy
from scheduler.config import Config
from scheduler.edges import Edge, Edges
from scheduler.fleet import Fleet, Worker
from scheduler.leader import Leadership
from scheduler.leases import LeaseState
from scheduler.ports import Chance, EdgeLink, Recorder, WorkerLink
from scheduler.reconciliation import reconcile, void_strays
from scheduler.usage_log import UsageLog

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
        self.leader = Leadership(chance.new_key, contested=bool(config.database_url))
        self.usage_log = UsageLog()
        self._new_admission = partial(
            Admission,
            config,
            fleet=self.fleet,
            edges=self.edges,
            leader=self.leader,
            usage_log=self.usage_log,
            chance=chance,
            recorder=recorder,
        )
        self.admission = self._new_admission()
        self._warm_up_s = config.warm_up_s
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
        edge, kind = self._edge_links.get(link), message.WhichOneof("item")
        if edge is None or kind == "hello":
            self._edge_hello(link, message, now)
            return
        if not self.leader.leads:
            return
        match kind:
            case "acquire" if edge.confirmed:
                self.admission.acquire(edge, message.acquire, now)
            case "release":
                self.admission.release(edge, message.release.lease_id, now)
            case "cancel":
                self.admission.cancel(edge, message.cancel.request_id, now)
            case "lease_lost":
                lost = message.lease_lost
                self.admission.lost(edge, lost.lease_id, now, refused=lost.refused)
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
        hello: EdgeHello = message.hello
        before = self._edge_links.get(link)
        if not hello.edge_id or (before is not None and before.edge_id != hello.edge_id):
            raise ProtocolError("the first item must be a Hello with an edge_id")
        self._hear(hello.edge_id, hello.term, now, first=before is None)
        edge, former = self.edges.join(hello, link)
        edge.confirmed = self.leader.knows(edge.edge_id, hello.term)
        if former is not None and former.link not in (None, link):
            self.admission.withdraw(edge.edge_id, now)
            self._replace(former.link, self._edge_links)
        self._edge_links[link] = edge
        if before is None:
            self._welcome_edge(link, edge)
            log.info("edge_joined", edge_id=edge.edge_id)
        if not edge.confirmed:
            return
        for lease in self.admission.leases.of_edge(edge.edge_id):
            if lease.lease_id not in edge.listed and lease.state is not LeaseState.VOIDING:
                self.admission.void(lease)

    # Workers

    def worker_said(self, link: WorkerLink, report: WorkerReport, now: float) -> None:
        """Take one item from a worker.

        Raises:
            ProtocolError: the first item is no Hello.
            FencedError: it is the Hello of a process that has been replaced.
        """
        if link in self._replaced:
            return
        worker, kind = self._worker_links.get(link), report.WhichOneof("item")
        if worker is None or kind == "hello":
            self._worker_hello(link, report, now)
            return
        match kind:
            case "heartbeat":
                self._heartbeat(worker, report.heartbeat, now)
            case "slot_freed":
                self._slot_freed(worker, report.slot_freed, now)

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
        before = self._worker_links.get(link)
        if before is not None and before.instance_id != hello.instance_id:
            raise ProtocolError("one session is of one instance")
        worker, former = self.fleet.join(hello, link, now)
        if former is not None and former.link not in (None, link):
            self._replace(former.link, self._worker_links)
        self._hear(hello.instance_id, hello.term, now, first=before is None)
        self._worker_links[link] = worker
        if before is None:
            self._welcome_worker(link, worker)
            log.info(
                "worker_joined",
                worker_id=worker.worker_id,
                instance_id=worker.instance_id,
                model=worker.card.model,
                slots=worker.slots,
            )
        if former is not None and former.instance_id != worker.instance_id:
            ended = self.admission.end_instance(former.instance_id, now)
            log.warning(
                "worker_replaced",
                worker_id=worker.worker_id,
                instance_id=worker.instance_id,
                former_instance_id=former.instance_id,
                leases_ended=ended,
            )
        if self.leader.knows(worker.instance_id, hello.term):
            self.fleet.confirm(worker, now)
            reconcile(self.admission, self.edges, worker, hello, now)
        self._models_changed()
        if former is not None and former.card.model != worker.card.model:
            self.admission.review(former.card.model, now)
            self.admission.fill(former.card.model, now)
        self.admission.fill(worker.card.model, now)

    def _heartbeat(self, worker: Worker, heartbeat: Heartbeat, now: float) -> None:
        took = worker.takes_requests
        self.fleet.beat(worker, heartbeat, now)
        # What it lists before its Hello of this term, that one may list no more.
        if worker.confirmed:
            self.admission.leases.run(worker.instance_id, heartbeat.running_lease_ids)
            void_strays(self.admission, worker, list(heartbeat.running_lease_ids), now)
        if took != worker.takes_requests:
            self._models_changed()
            self.admission.review(worker.card.model, now)
            self.admission.fill(worker.card.model, now)

    def _slot_freed(self, worker: Worker, freed: SlotFreed, now: float) -> None:
        usage = freed.usage if freed.HasField("usage") else None
        granted_here = self.admission.leases.get(freed.lease_id) is not None
        self.admission.freed(worker, freed.lease_id, usage, now)
        if usage is not None and freed.request_id and not granted_here:
            self.usage_log.add(freed.request_id, freed.generation, worker.worker_id, usage, now)

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
            self._settles_at if self._settles else None,
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
        if self._settles and now >= self._settles_at:
            self.admission.settle(now)
        self._models_changed()
        for worker in gone:
            log.warning("worker_gone", worker_id=worker.worker_id)
            self.admission.worker_gone(worker.instance_id, now)
            self.admission.review(worker.card.model, now)
        self.admission.reopen(now)
        self.admission.expire(now)

    @property
    def _settles(self) -> bool:
        return self.leader.leads and not self.admission.refusals.complete

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

    def know_models(self, cards: Iterable[ModelCard]) -> None:
        """Learn which models were ever served; what workers say that are there goes before."""
        served = (worker.card for worker in self.fleet.workers() if not worker.gone)
        self.fleet.cards = {card.model: card for card in (*cards, *served)}
        self._models_changed()

    def check_forgettable(self, model: str) -> None:
        """Make sure that a model may be forgotten.

        Raises:
            ServiceError: it is unknown, or a worker that is not gone serves it; or we stand by.
        """
        if not self.leader.leads:
            raise ServiceError(
                ErrorReason.ERROR_REASON_UNAVAILABLE,
                "this scheduler stands by: ask the one that leads",
            )
        if model not in self.fleet.cards:
            raise ServiceError(
                ErrorReason.ERROR_REASON_NOT_FOUND, f"model '{model[:200]}' is not known"
            )
        if self._is_served(model):
            raise ServiceError(
                ErrorReason.ERROR_REASON_CONFLICT,
                f"a worker serves '{model[:200]}': stop it first, and wait until it is gone",
            )

    def forget_model(self, model: str) -> None:
        """Forget a model, unless a worker serves it by now."""
        if not self._is_served(model):
            self.fleet.cards.pop(model, None)
            self._models_changed()

    def _is_served(self, model: str) -> bool:
        return any(
            worker.card.model == model and not worker.gone for worker in self.fleet.workers()
        )

    def _models_changed(self) -> None:
        """Tell all edges, if there is news."""
        models = self.models()
        if models == self._models or not self.leader.leads:
            return
        self._models = models
        for link in self._edge_links:
            link.send(EdgeReply(models=models))

    # Term

    def took_row(self, term: int, now: float) -> None:
        """The row of the leader is ours, with this term."""
        if self.leader.took(term):
            self._begin_term(now)

    def refused_row(self, term: int, now: float) -> None:
        """The row of the leader is another's, with this term."""
        if self.leader.refused(term):
            self._begin_term(now)

    def _hear(self, peer_id: str, term: int, now: float, *, first: bool) -> None:
        if self.leader.hear(peer_id, term, first=first):
            self._begin_term(now)

    def _begin_term(self, now: float) -> None:
        """Tell everybody, and count on nothing that was said in another term."""
        leads = self.leader.leads
        if leads:
            log.info("term_began", term=self.leader.term)
        else:
            log.warning("leads_no_more", highest_term=self.leader.highest)
        self.fleet.begin_term()
        self.edges.begin_term()
        if leads:
            for edge in self.edges.connected():
                self.admission.withdraw(edge.edge_id, now)
        else:
            self.admission = self._new_admission()
        # Also of who led before: it may have been frozen, and has not heard of anybody since.
        self.admission.refusals.complete = False
        self._settles_at = now + self._warm_up_s
        self._models = self.models()
        for edge_link, edge in self._edge_links.items():
            self._welcome_edge(edge_link, edge)
        for worker_link, worker in self._worker_links.items():
            self._welcome_worker(worker_link, worker)

    def _welcome_edge(self, link: EdgeLink, edge: Edge) -> None:
        link.send(EdgeReply(welcome=EdgeWelcome(term=self.leader.tell(edge.edge_id))))
        if self.leader.leads:
            link.send(EdgeReply(models=self.models()))

    def _welcome_worker(self, link: WorkerLink, worker: Worker) -> None:
        term = self.leader.tell(worker.instance_id)
        link.send(WorkerCommand(welcome=Welcome(term=term, lease_key=self.leader.lease_key)))
