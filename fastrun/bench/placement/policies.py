"""How others choose a worker: plain rules, and the published cost functions of Dynamo and SMG.

Their figures are the published defaults and are not to be tuned. All of them choose among workers
with a free slot, and know what a router in their place knows: its own placements, each request's
first token and end, and, for Dynamo, what workers publish about their caches.
"""

from collections.abc import Callable, Sequence
from random import Random

from fastrun.bench.placement.prefixes import PlacedPrefixes, PrefixMap
from fastrun.bench.placement.trace import BLOCK_TOKENS, Request

DYNAMO_OVERLAP_WEIGHT = 1.0
SMG_CACHE_THRESHOLD = 0.5
SMG_BALANCE_ABSOLUTE = 32
SMG_BALANCE_RELATIVE = 1.1
SMG_TREE_NODES = 10_000


class Policy:
    """One rule with its own memory; workers are known by their numbers."""

    def __init__(self, workers: int, cache_blocks: int, random: Random) -> None:
        self.running = [0] * workers
        """How many requests each worker has."""
        self._cache_blocks = cache_blocks
        self._random = random

    def choose(self, request: Request, free: Sequence[int]) -> int:
        """Choose one of the workers that have a free slot, of which there is one at least."""
        raise NotImplementedError

    def placed(self, request: Request, worker: int) -> None:  # noqa: ARG002 - others need it
        """Note where a request went."""
        self.running[worker] += 1

    def first_token(self, request: Request, worker: int) -> None:
        """Note that a prompt has been computed."""

    def finished(self, request: Request, worker: int) -> None:  # noqa: ARG002 - others need it
        """Note that a request has ended."""
        self.running[worker] -= 1

    def stored(self, worker: int, block: int) -> None:
        """Note that a worker has published a new block."""

    def evicted(self, worker: int, block: int) -> None:
        """Note that a worker has published that a block is gone."""

    def _least_running(self, workers: Sequence[int]) -> int:
        """Return the worker with the fewest requests; among equals, any."""
        least = min(self.running[worker] for worker in workers)
        return self._random.choice([each for each in workers if self.running[each] == least])


class RoundRobin(Policy):
    """One after the other."""

    def __init__(self, workers: int, cache_blocks: int, random: Random) -> None:
        super().__init__(workers, cache_blocks, random)
        self._last = -1

    def choose(self, request: Request, free: Sequence[int]) -> int:  # noqa: ARG002 - not this one
        """Return the next one after the last."""
        self._last = next((each for each in free if each > self._last), free[0])
        return self._last


class LeastLoaded(Policy):
    """The one with the fewest requests."""

    def choose(self, request: Request, free: Sequence[int]) -> int:  # noqa: ARG002 - not this one
        """Return the least loaded."""
        return self._least_running(free)


class PowerOfTwo(Policy):
    """The less loaded of two that are drawn by lot."""

    def choose(self, request: Request, free: Sequence[int]) -> int:  # noqa: ARG002 - not this one
        """Return the better of two."""
        return self._least_running(self._random.sample(free, min(2, len(free))))


class PrefixOnly(Policy):
    """The one with the longest beginning in its cache, whatever its load."""

    def __init__(self, workers: int, cache_blocks: int, random: Random) -> None:
        super().__init__(workers, cache_blocks, random)
        self._prefixes = PlacedPrefixes(cache_blocks)

    def choose(self, request: Request, free: Sequence[int]) -> int:
        """Return the best match; among equals, the least loaded."""
        matches = self._prefixes.matches(request.blocks)
        most = max(matches.get(worker, 0) for worker in free)
        return self._least_running([each for each in free if matches.get(each, 0) == most])

    def placed(self, request: Request, worker: int) -> None:
        """Remember what it has now."""
        super().placed(request, worker)
        self._prefixes.placed(worker, request.blocks)


class Dynamo(Policy):
    """NVIDIA Dynamo's KV router at temperature 0, with exact word of every cache.

    The cost of a worker, in blocks: what it would have to prefill, with what waits there, times the
    overlap weight, and all that it would hold, with what runs there. A prompt counts as prefill
    until its first token, and as held until its end.
    """

    def __init__(self, workers: int, cache_blocks: int, random: Random) -> None:
        super().__init__(workers, cache_blocks, random)
        self._map = PrefixMap()
        self._prefill_tokens = [0] * workers
        self._prefill_of: dict[int, int] = {}
        self._held: list[dict[int, int]] = [{} for _ in range(workers)]
        """How many of a worker's requests use a block."""
        self._partial = [0] * workers
        """Its requests whose last block is not full, which nobody shares."""

    def choose(self, request: Request, free: Sequence[int]) -> int:
        """Return the cheapest; among equals, any."""
        matches = self._map.matches(request.blocks)
        costs = [self._cost(request, worker, matches.get(worker, 0)) for worker in free]
        least = min(costs)
        return self._random.choice(
            [worker for worker, cost in zip(free, costs, strict=True) if cost == least]
        )

    def placed(self, request: Request, worker: int) -> None:
        """Count its prefill and its blocks."""
        super().placed(request, worker)
        matched = self._map.matches(request.blocks).get(worker, 0)
        tokens = request.prompt_tokens - matched * BLOCK_TOKENS
        self._prefill_of[request.number] = tokens
        self._prefill_tokens[worker] += tokens
        held = self._held[worker]
        for block in request.blocks:
            held[block] = held.get(block, 0) + 1
        self._partial[worker] += _has_partial(request)

    def first_token(self, request: Request, worker: int) -> None:
        """Take its prefill off."""
        self._prefill_tokens[worker] -= self._prefill_of.pop(request.number)

    def finished(self, request: Request, worker: int) -> None:
        """Take its blocks off."""
        super().finished(request, worker)
        held = self._held[worker]
        for block in request.blocks:
            held[block] -= 1
            if not held[block]:
                del held[block]
        self._partial[worker] -= _has_partial(request)

    def stored(self, worker: int, block: int) -> None:
        """Keep the map exact."""
        self._map.add(worker, block)

    def evicted(self, worker: int, block: int) -> None:
        """Keep the map exact."""
        self._map.remove(worker, block)

    def _cost(self, request: Request, worker: int, matched: int) -> float:
        tokens = self._prefill_tokens[worker] + request.prompt_tokens - matched * BLOCK_TOKENS
        held = self._held[worker]
        # Blocks are chained: behind one that nobody there uses, no other is in use.
        shared = 0
        for block in request.blocks:
            if block not in held:
                break
            shared += 1
        new = len(request.blocks) - shared + _has_partial(request)
        decode = len(held) + self._partial[worker] + new
        return DYNAMO_OVERLAP_WEIGHT * tokens / BLOCK_TOKENS + decode


class CacheAware(Policy):
    """SMG's cache_aware: the best match if it is good, else the smallest tree.

    The least loaded if the fleet is out of balance.
    """

    def __init__(self, workers: int, cache_blocks: int, random: Random) -> None:
        super().__init__(workers, cache_blocks, random)
        self._tree = PlacedPrefixes(SMG_TREE_NODES)

    def choose(self, request: Request, free: Sequence[int]) -> int:
        """Return the one that the published rule names."""
        most, least = max(self.running), min(self.running)
        if most - least > SMG_BALANCE_ABSOLUTE and most > SMG_BALANCE_RELATIVE * least:
            return self._least_running(free)
        matches = self._tree.matches(request.blocks)
        best = max(free, key=lambda worker: matches.get(worker, 0))
        matched = matches.get(best, 0) * BLOCK_TOKENS / request.prompt_tokens
        if matched >= SMG_CACHE_THRESHOLD:
            return best
        return min(free, key=self._tree.size)

    def placed(self, request: Request, worker: int) -> None:
        """Grow the tree."""
        super().placed(request, worker)
        self._tree.placed(worker, request.blocks)


POLICIES: dict[str, Callable[[int, int, Random], Policy]] = {
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "power_of_two": PowerOfTwo,
    "prefix_only": PrefixOnly,
    "dynamo": Dynamo,
    "smg": CacheAware,
}


def _has_partial(request: Request) -> bool:
    return request.prompt_tokens % BLOCK_TOKENS > 0
