"""Whose grants count: whether this scheduler leads, with which term, and the key of its leases.

A state machine without clock or I/O. With a database schedulers contend for a row, and each taking
of it has a higher term than all before: that is what decides. Who leads goes on while Postgres is
away; it steps down as soon as it hears of a higher term, from the row or from any peer. Without a
database one scheduler leads, and its term rises above any that a peer knows.
"""

from collections.abc import Callable

MOST_TERM = 2**62
"""A higher one is none: Postgres counts to 2^63."""


class Leadership:
    """What one scheduler may do: lead with a term, or stand by."""

    def __init__(self, new_key: Callable[[], bytes], *, contested: bool) -> None:
        """Begin.

        Args:
            new_key: makes the key of a term's leases.
            contested: a row in a database decides who leads; else this one does.
        """
        self._new_key = new_key
        self._contested = contested
        self._told: set[str] = set()
        self.term = 0
        """That it leads with; 0: it stands by."""
        self.lease_key = b""
        self.highest = 0
        """Of all terms that were heard of."""
        if not contested:
            self._lead(1)

    @property
    def leads(self) -> bool:
        """Whether it may grant."""
        return self.term > 0

    @property
    def least(self) -> int:
        """The lowest term that it could hold the row with."""
        return self.term or self.highest + 1

    def took(self, term: int) -> bool:
        """The row is ours, with this term; returns whether that is a new one."""
        if term == self.term or term < self.least:
            return False
        self._lead(term)
        return True

    def refused(self, term: int) -> bool:
        """The row is another's, with this term; returns whether it ends ours."""
        self.highest = max(self.highest, term)
        if not self.leads or term <= self.term:
            return False
        self._stand_by()
        return True

    def hear(self, peer_id: str, term: int, *, first: bool) -> bool:
        """Take note of the highest term that a peer has seen.

        Terms are told apart by who gave them: a peer that says ours back was told it here; the
        same number from a peer we have not told it to stems from another scheduler.

        Args:
            peer_id: an edge's id or a worker's instance id.
            term: from its Hello.
            first: the first Hello of its session.

        Returns:
            True if our term changed: everybody must be told again, and unstarted leases of the
            former term die at their worker.
        """
        if term > MOST_TERM:
            return False
        self.highest = max(self.highest, term)
        if not self.leads or term < self.term or (term == self.term and peer_id in self._told):
            return False
        if self._contested:
            self._stand_by()
            return True
        if not first:
            # It has just heard it from another scheduler that leads without a database. To rise
            # above that one would let it rise above us, and so on for ever.
            return False
        self._lead(term + 1)
        return True

    def knows(self, peer_id: str, term: int) -> bool:
        """Tell whether a peer said Hello in our term, so that nothing of an older one is left."""
        return self.leads and term == self.term and peer_id in self._told

    def tell(self, peer_id: str) -> int:
        """Return the term, to be sent to a peer."""
        self._told.add(peer_id)
        return self.term

    def _lead(self, term: int) -> None:
        self.term = term
        self.highest = max(self.highest, term)
        self.lease_key = self._new_key()
        self._told.clear()

    def _stand_by(self) -> None:
        self.term = 0
        self.lease_key = b""
        self._told.clear()
