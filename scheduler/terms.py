"""What a term begins with: empty books, and a Welcome for everybody.

The books are rebuilt from what workers say in their Hello of that term; so that no slot is counted
free that is not, a worker gets nothing before it. A scheduler that stands by keeps the same
sessions and sees the same fleet. It has no books and answers no request.
"""

import structlog

from fastrun.v1.scheduler_pb2 import EdgeReply, EdgeWelcome, Welcome, WorkerCommand
from scheduler.admission import Admission
from scheduler.edges import Edge, Edges
from scheduler.fleet import Fleet, Worker
from scheduler.leader import Leadership
from scheduler.models import Models

log = structlog.get_logger()


class Terms:
    """Begins and ends this scheduler's terms; times are monotonic seconds."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        edges: Edges,
        admission: Admission,
        models: Models,
        leader: Leadership,
        warm_up_s: float,
        now: float,
    ) -> None:
        """Begin with the term that there is without asking anybody.

        Args:
            fleet: which workers are there.
            edges: which edges are there.
            admission: its books.
            models: what edges are told with their Welcome.
            leader: decides who leads.
            warm_up_s: for so long what is missing in a term may yet come.
            now: monotonic seconds.
        """
        self._fleet = fleet
        self._edges = edges
        self._admission = admission
        self._models = models
        self._leader = leader
        self._warm_up_s = warm_up_s
        self._settles_at = now + warm_up_s
        self._lags = False
        """The leader's term has changed, and is not begun here yet."""

    @property
    def leads(self) -> bool:
        """Whether there are books, and requests are answered."""
        return self._leader.leads and not self._lags

    def took_row(self, term: int, now: float) -> None:
        """The row of the leader is ours, with this term."""
        self._lags |= self._leader.took(term)
        self._catch_up(now)

    def refused_row(self, term: int, now: float) -> None:
        """The row of the leader is another's, with this term."""
        self._lags |= self._leader.refused(term)
        self._catch_up(now)

    def hear(self, peer_id: str, term: int, now: float, *, first: bool) -> bool:
        """Take note of the term in the Hello of a peer that has joined.

        Args:
            peer_id: an edge's id or a worker's instance id.
            term: the highest that it has seen.
            now: monotonic seconds.
            first: the first Hello of its session.

        Returns:
            Whether that began a term, with which all that have a session were welcomed.
        """
        self._lags |= self._leader.hear(peer_id, term, first=first)
        return self._catch_up(now)

    def knows(self, peer_id: str, term: int) -> bool:
        """Tell whether a peer said Hello in our term, so that nothing of an older one is left."""
        return self._leader.knows(peer_id, term)

    def welcome_edge(self, edge: Edge) -> None:
        """Tell an edge our term, and the models if we lead."""
        edge.send(EdgeReply(welcome=EdgeWelcome(term=self._leader.tell(edge.edge_id))))
        if self._leader.leads:
            self._models.tell(edge)

    def welcome_worker(self, worker: Worker) -> None:
        """Tell a worker our term and the key of its leases."""
        term = self._leader.tell(worker.instance_id)
        worker.send(WorkerCommand(welcome=Welcome(term=term, lease_key=self._leader.lease_key)))

    def next_due(self) -> float | None:
        """Return when the first seconds of a term are over, or it is to be begun once more."""
        if self._lags:
            return 0.0
        return self._settles_at if self._settles else None

    def tick(self, now: float) -> None:
        """End the first seconds of a term, if they are over by now."""
        self._catch_up(now)
        if self._settles and now >= self._settles_at:
            self._admission.settle(now)

    @property
    def _settles(self) -> bool:
        return self._leader.leads and not self._admission.refusals.complete

    def _catch_up(self, now: float) -> bool:
        """Begin the leader's term, or end ours, unless that is done; returns whether it was not.

        What fails half-way is done once more, from the beginning. Until then no Hello is taken, so
        that nobody has confirmed a term which is begun again.
        """
        lagged = self._lags
        if lagged:
            self._begin(now)
            self._lags = False
        return lagged

    def _begin(self, now: float) -> None:
        """Tell everybody, and count on nothing that was said in another term."""
        leads = self._leader.leads
        if leads:
            log.info("term_began", term=self._leader.term)
        else:
            log.warning("leads_no_more", highest_term=self._leader.highest)
        self._fleet.begin_term()
        self._edges.begin_term()
        if leads:
            for edge in self._edges.connected():
                self._admission.withdraw(edge.edge_id, now)
        else:
            self._admission.begin()
        # Also of who led before: it may have been frozen, and has not heard of anybody since.
        self._admission.refusals.complete = False
        self._settles_at = now + self._warm_up_s
        self._models.begin_term()
        for edge in self._edges.connected():
            self.welcome_edge(edge)
        for worker in self._fleet.connected():
            self.welcome_worker(worker)
