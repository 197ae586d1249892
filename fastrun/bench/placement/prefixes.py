"""What a router believes of the workers' caches."""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixMap:
    """Which workers have which blocks."""

    def __init__(self) -> None:
        self._holders: dict[int, set[int]] = {}

    def add(self, worker: int, block: int) -> None:
        """Note that a worker has a block."""
        self._holders.setdefault(block, set()).add(worker)

    def remove(self, worker: int, block: int) -> None:
        """Note that a worker has a block no more."""
        holders = self._holders[block]
        holders.discard(worker)
        if not holders:
            del self._holders[block]

    def matches(self, blocks: Sequence[int]) -> dict[int, int]:
        """Return how many blocks from the start each worker has; of those that have any."""
        matches: dict[int, int] = {}
        left: set[int] | None = None
        for count, block in enumerate(blocks):
            holders = self._holders.get(block)
            if holders is None:
                break
            now = holders if left is None else left & holders
            if left is not None:
                matches.update(dict.fromkeys(left - now, count))
            left = now
            if not left:
                break
        else:
            count = len(blocks)
        matches.update(dict.fromkeys(left or (), count if blocks else 0))
        return matches


class PlacedPrefixes:
    """What a router without word from the workers believes: what it placed last is still there."""

    def __init__(self, capacity: int) -> None:
        """Begin with nothing.

        Args:
            capacity: how many blocks of each worker are remembered.
        """
        self._capacity = capacity
        self._map = PrefixMap()
        self._recent: dict[int, OrderedDict[int, None]] = {}

    def size(self, worker: int) -> int:
        """Return how many blocks of a worker are remembered."""
        return len(self._recent.get(worker, ()))

    def placed(self, worker: int, blocks: Sequence[int]) -> None:
        """Note that a prompt went to a worker."""
        recent = self._recent.setdefault(worker, OrderedDict())
        for block in reversed(blocks):
            if block in recent:
                recent.move_to_end(block)
            else:
                recent[block] = None
                self._map.add(worker, block)
        while len(recent) > self._capacity:
            oldest, _ = recent.popitem(last=False)
            self._map.remove(worker, oldest)

    def matches(self, blocks: Sequence[int]) -> dict[int, int]:
        """Return how many blocks from the start each worker should have."""
        return self._map.matches(blocks)
