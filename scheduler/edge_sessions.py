"""What happens when edges come, ask, fall silent, leave and come back."""

import structlog

from fastrun.v1.scheduler_pb2 import Acquire, EdgeHello, EdgeMessage
from scheduler.admission import Admission
from scheduler.edges import Edge, Edges
from scheduler.leases import LeaseState
from scheduler.links import Links, ProtocolError, check_certificate
from scheduler.ports import EdgeLink
from scheduler.terms import Terms

log = structlog.get_logger()


class EdgeSessions:
    """Every session with an edge; times are monotonic seconds."""

    def __init__(self, *, edges: Edges, admission: Admission, terms: Terms) -> None:
        self._edges = edges
        self._admission = admission
        self._terms = terms
        self._links: Links[EdgeLink, Edge] = Links()

    def said(self, link: EdgeLink, message: EdgeMessage, now: float) -> None:
        """Take one item from an edge.

        Raises:
            ProtocolError: the first item is no Hello.
            StrangerError: it is the Hello of an edge with another certificate.
        """
        if self._links.is_replaced(link):
            return
        edge, kind = self._links.peer(link), message.WhichOneof("item")
        if edge is None or kind == "hello":
            self._hello(link, message.hello, now)
            return
        if not self._terms.leads:
            return
        try:
            self._take(edge, kind, message, now)
        except Exception:
            # A fault of ours is this item's; to end the session would let it come again.
            log.exception("edge_item_failed", edge_id=edge.edge_id, item=kind)

    def left(self, link: EdgeLink, now: float) -> None:
        """Note that a session has ended; if a newer one has replaced it, that one stays."""
        edge = self._links.end(link)
        if edge is None:
            return
        self._edges.leave(edge, now)
        self._admission.withdraw(edge.edge_id, now)
        log.info("edge_left", edge_id=edge.edge_id)

    def expire(self, now: float) -> None:
        """Void what was granted to edges that have been away too long."""
        for edge in self._edges.expire(now):
            leases = list(self._admission.leases.of_edge(edge.edge_id))
            if leases:  # else it has ended as it was asked to
                log.warning("edge_gone", edge_id=edge.edge_id, leases=len(leases))
            for lease in leases:
                self._admission.void(lease)

    def close(self) -> None:
        """End all sessions."""
        self._links.close()

    def _take(self, edge: Edge, kind: str | None, message: EdgeMessage, now: float) -> None:
        match kind:
            case "acquire" if edge.confirmed:
                self._acquire(edge, message.acquire, now)
            case "release":
                self._admission.release(edge, message.release.lease_id, now)
            case "cancel":
                self._admission.cancel(edge, message.cancel.request_id, now)
            case "lease_lost":
                lost = message.lease_lost
                self._admission.lost(edge, lost.lease_id, now, refused=lost.refused)
            case "worker_failed":
                failed = message.worker_failed
                self._admission.failed(failed.instance_id, failed.lease_id, now)

    def _acquire(self, edge: Edge, acquire: Acquire, now: float) -> None:
        try:
            self._admission.acquire(edge, acquire, now)
        except Exception:
            log.exception("acquire_failed", edge_id=edge.edge_id, request_id=acquire.request_id)
            self._admission.give_up(edge.edge_id, acquire.request_id, now)

    def _hello(self, link: EdgeLink, hello: EdgeHello, now: float) -> None:
        before = self._links.peer(link)
        if not hello.edge_id or (before is not None and before.edge_id != hello.edge_id):
            raise ProtocolError("the first item must be a Hello with an edge_id")
        known = self._edges.get(hello.edge_id)
        if known is not None and known.certificate is not None:
            check_certificate(link, f"edge '{hello.edge_id[:80]}'", known.certificate)
        edge, former = self._edges.join(hello, link)
        edge.certificate = link.certificate
        self._links.bind(link, edge)
        if former is not None and former.link not in (None, link):
            self._links.replace(former.link)
            self._admission.withdraw(edge.edge_id, now)
        began = self._terms.hear(edge.edge_id, hello.term, now, first=before is None)
        edge.confirmed = self._terms.knows(edge.edge_id, hello.term)
        if before is None:
            if not began:
                self._terms.welcome_edge(edge)
            log.info("edge_joined", edge_id=edge.edge_id)
        if not edge.confirmed:
            return
        for lease in self._admission.leases.of_edge(edge.edge_id):
            if lease.lease_id not in edge.listed and lease.state is not LeaseState.VOIDING:
                self._admission.void(lease)
