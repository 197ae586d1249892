"""Which edges are there, and when one that is away counts as gone."""

from dataclasses import dataclass

from fastrun.v1.scheduler_pb2 import EdgeHello, EdgeReply
from scheduler import links
from scheduler.ports import EdgeLink


@dataclass(slots=True, eq=False)
class Edge:
    """One edge process."""

    edge_id: str
    link: EdgeLink | None
    """None while it has no session."""
    left_at: float = 0.0
    """When its last session ended, monotonic seconds."""
    listed: frozenset[str] = frozenset()
    """Ids of the leases that it held at its last Hello."""
    confirmed: bool = False
    """It has said that Hello in this term: it lacks what it did not list, and may ask."""
    version: str = ""
    """Of fastrun, as it says."""
    certificate: str | None = None
    """The name in it, by which it is known; None: it has not been heard yet."""

    def send(self, reply: EdgeReply) -> None:
        """Append to what it will be sent, if it has a session; never raises."""
        links.send(self.link, reply)


class Edges:
    """All edges that are up, or have been a moment ago."""

    def __init__(self, *, gone_after_s: float) -> None:
        self._gone_after_s = gone_after_s
        self._edges: dict[str, Edge] = {}
        # In the order in which they left.
        self._away: dict[str, Edge] = {}

    def connected(self) -> list[Edge]:
        """Return the edges that have a session."""
        return [edge for edge in self._edges.values() if edge.link is not None]

    def get(self, edge_id: str) -> Edge | None:
        """Return an edge, also while it is away."""
        return self._edges.get(edge_id)

    def join(self, hello: EdgeHello, link: EdgeLink) -> tuple[Edge, Edge | None]:
        """Take in an edge that said Hello.

        Returns:
            The edge, and what it was before if it was there before.
        """
        former = self._edges.get(hello.edge_id)
        listed = frozenset(hello.lease_ids)
        edge = Edge(hello.edge_id, link, listed=listed, version=hello.version)
        self._edges[edge.edge_id] = edge
        self._away.pop(edge.edge_id, None)
        return edge, former

    def begin_term(self) -> None:
        """A new term has begun, or ours has ended: each edge is to say Hello in it."""
        for edge in self._edges.values():
            edge.confirmed = False

    def leave(self, edge: Edge, now: float) -> None:
        """Note that the session of an edge has ended."""
        edge.link = None
        edge.left_at = now
        self._away[edge.edge_id] = edge

    def expect(self, edge_id: str, now: float) -> Edge:
        """Return the edge of a lease that was found running; it counts as away until it comes."""
        edge = self._edges.get(edge_id)
        if edge is None:
            edge = self._edges[edge_id] = Edge(edge_id, None)
            self.leave(edge, now)
        return edge

    def next_due(self) -> float | None:
        """Return when the next edge will be gone."""
        for edge in self._away.values():
            return edge.left_at + self._gone_after_s
        return None

    def expire(self, now: float) -> list[Edge]:
        """Forget the edges that have been away too long, and return them."""
        gone = []
        while (due := self.next_due()) is not None and due <= now:
            edge_id = next(iter(self._away))
            gone.append(self._away.pop(edge_id))
            del self._edges[edge_id]
        return gone
