"""Whose grants count: the term that this scheduler leads with, and the key of its leases."""

from collections.abc import Callable


class Leadership:
    """The one scheduler's term: always above any that another scheduler has given out.

    Terms are told apart by who gave them: a peer that says ours back was told it here; the same
    number from a peer we have not told it to stems from another scheduler, and ours rises.
    """

    def __init__(self, new_key: Callable[[], bytes]) -> None:
        self._new_key = new_key
        self._told: set[str] = set()
        self.term = 1
        self.lease_key = new_key()

    def hear(self, peer_id: str, term: int) -> bool:
        """Take note of the highest term that a peer has seen.

        Args:
            peer_id: an edge's id or a worker's instance id.
            term: from its Hello.

        Returns:
            True if our term rose above it: everybody must be told again, and unstarted leases of
            the former term die at their worker.
        """
        if term < self.term or (term == self.term and peer_id in self._told):
            return False
        self.term = term + 1
        self.lease_key = self._new_key()
        self._told.clear()
        return True

    def tell(self, peer_id: str) -> int:
        """Return the term, to be sent to a peer."""
        self._told.add(peer_id)
        return self.term
