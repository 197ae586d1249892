"""The prefix cache of one simulated worker: bounded, least recently used out first.

Memory is counted in blocks. What running requests hold cannot be evicted; what nobody uses stays
until its room is needed. This is what a worker truly has, whatever a router believes.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol


class CacheFollower(Protocol):
    """Hears of each block that comes and goes, as by the events that some engines publish."""

    def stored(self, worker: int, block: int) -> None:
        """A worker has a block that it had not."""

    def evicted(self, worker: int, block: int) -> None:
        """A worker has a block no more."""


class PrefixCache:
    """Blocks in the memory of one worker."""

    def __init__(
        self, capacity: int, *, worker: int = 0, follower: CacheFollower | None = None
    ) -> None:
        self._capacity = capacity
        self._worker = worker
        self._follower = follower
        self._pinned: dict[int, int] = {}
        """How many running requests use a block."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Least recently used first."""
        self._private = 0
        """Blocks of running requests that nobody else can use."""

    @property
    def held(self) -> int:
        """How many blocks running requests hold."""
        return len(self._pinned) + self._private

    def match(self, blocks: Sequence[int]) -> int:
        """Return how many blocks from the start are here."""
        for count, block in enumerate(blocks):
            if block not in self._pinned and block not in self._idle:
                return count
        return len(blocks)

    def reserve(self, blocks: Sequence[int], matched: int, total: int) -> bool:
        """Hold the blocks that matched and room for the rest of a request.

        Args:
            blocks: of its prompt.
            matched: how many of them are here.
            total: how many blocks prompt and answer need.

        Returns:
            False if there is no room until others end.
        """
        kept = blocks[:matched]
        woken = sum(block in self._idle for block in kept)
        if self.held + woken + total - matched > self._capacity:
            return False
        for block in kept:
            self._pin(block)
        self._private += total - matched
        while self.held + len(self._idle) > self._capacity:
            evicted, _ = self._idle.popitem(last=False)
            if self._follower is not None:
                self._follower.evicted(self._worker, evicted)
        return True

    def publish(self, blocks: Sequence[int], matched: int) -> None:
        """Let others use the blocks of a prompt that have been computed now."""
        for block in blocks[matched:]:
            self._private -= 1
            is_new = block not in self._pinned and block not in self._idle
            self._pin(block)
            if is_new and self._follower is not None:
                self._follower.stored(self._worker, block)

    def release(self, blocks: Sequence[int], total: int) -> None:
        """Let go of a request that has ended; the ends of prompts are evicted before their starts.

        Args:
            blocks: of its prompt, all published.
            total: as reserved.
        """
        self._private -= total - len(blocks)
        for block in reversed(blocks):
            left = self._pinned[block] - 1
            if left:
                self._pinned[block] = left
            else:
                del self._pinned[block]
                self._idle[block] = None

    def _pin(self, block: int) -> None:
        self._idle.pop(block, None)
        self._pinned[block] = self._pinned.get(block, 0) + 1
