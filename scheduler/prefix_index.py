"""Which worker processes have which beginnings of prompts in their cache, as far as can be told.

A block is known by the hash of all up to its end, so that equal hashes mean equal beginnings. The
index is fed by what is granted: what a worker computes, it caches. It is a guess, which is bounded
three times: by what a worker can hold, by how many entries there may be over all workers, and by
the life of the worker's process.

In each cache the blocks stand in the order of their last use, and of one prompt the later ones go
first: so what is left of a prompt is always its beginning, and how much is found by bisection.
"""

import heapq
import itertools
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from fastrun.v1.scheduler_pb2 import Acquire

SMALLEST_BOUND_TOKENS = 2048.0
SHRINK = 0.9
GROW = 1.002


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the scheduler knows of a prompt; token counts are estimates of the edge."""

    tokens: int = 0
    hashes: tuple[int, ...] = ()
    """One for each block, from the beginning."""
    ends: tuple[int, ...] = ()
    """How many tokens there are up to the end of each block."""

    @classmethod
    def of(cls, acquire: Acquire) -> "Prompt":
        """Read an Acquire; blocks without both figures are left out."""
        ends = tuple(acquire.prefix_tokens)
        hashes = tuple(acquire.prefix_hashes)[: len(ends)]
        ends = ends[: len(hashes)]
        return cls(max(acquire.prompt_tokens, ends[-1] if ends else 0), hashes, ends)

    def tokens_of(self, blocks: int) -> int:
        """Return how many tokens so many blocks have."""
        return self.ends[blocks - 1] if blocks else 0


NO_PROMPT = Prompt()
"""Nothing is known of it."""


class _Mark(NamedTuple):
    """When blocks were last used; all that one use touches share it."""

    stamp: int
    tokens: float
    """Of each block."""
    computed: bool
    """The request that brought them here has ended: they are there, not only to come."""


class Cache:
    """What one worker process is thought to hold."""

    __slots__ = (
        "alone",
        "blocks",
        "bound_tokens",
        "holders",
        "instance_id",
        "is_watched",
        "model",
        "number",
        "tokens",
    )

    def __init__(self, instance_id: str, model: str, number: int, holders: "Holders") -> None:
        self.instance_id = instance_id
        self.number = number
        self.is_watched = False
        self.model = model
        self.holders = holders
        self.blocks: OrderedDict[int, _Mark] = OrderedDict()
        self.alone = (self,)
        self.tokens = 0.0
        self.bound_tokens = math.inf

    def depth(self, hashes: tuple[int, ...]) -> int:
        """Return how many blocks of a prompt it holds, from the beginning."""
        blocks = self.blocks
        if not hashes or hashes[0] not in blocks:
            return 0
        low, high = 1, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in blocks:
                low = middle
            else:
                high = middle - 1
        return low


Holders = dict[int, tuple[Cache, ...]]


@dataclass(slots=True)
class Promise:
    """What a granted lease was expected to find cached; to be compared with what it found."""

    cache: Cache
    prompt: Prompt
    blocks: int
    computed: bool
    stamp: int


class PrefixIndex:
    """All caches; bounded in entries, of which each is one block in one cache."""

    def __init__(self, *, entries: int) -> None:
        self._limit = entries
        self._caches: dict[str, Cache] = {}
        self._holders: dict[str, Holders] = {}
        self._stamps = itertools.count(1)
        # Each cache once, by the stamp of its oldest block when it was last looked at.
        self._oldest: list[tuple[int, int, Cache]] = []
        self._entries = 0

    def __len__(self) -> int:
        return self._entries

    def depth(self, instance_id: str, prompt: Prompt) -> int:
        """Return how many blocks of a prompt a worker process holds."""
        cache = self._caches.get(instance_id)
        return cache.depth(prompt.hashes) if cache is not None else 0

    def holders(self, model: str, prompt: Prompt, *, most: int, random: float) -> list[str]:
        """Return worker processes that hold a beginning of a prompt, the longest ones first.

        Args:
            model: whose workers.
            prompt: whose beginning.
            most: how many at most.
            random: in [0, 1): where among equals to begin.
        """
        table = self._holders.get(model)
        hashes = prompt.hashes
        if not table or not hashes or hashes[0] not in table:
            return []
        low, high = 1, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in table:
                low = middle
            else:
                high = middle - 1
        found: dict[str, None] = {}
        # Others may hold less of it and have less to do.
        while low and len(found) < most:
            caches = table.get(hashes[low - 1], ())
            first = int(random * len(caches))
            for cache in (*caches[first : first + most], *caches[: min(first, most)]):
                if len(found) < most:
                    found[cache.instance_id] = None
            low //= 2
        return list(found)

    def place(self, instance_id: str, model: str, prompt: Prompt) -> Promise | None:
        """Note that a worker process is going to compute a prompt, and so to cache it.

        Returns:
            What it holds of it already; None if the prompt has no blocks.
        """
        if not prompt.hashes:
            return None
        cache = self._cache(instance_id, model)
        depth = cache.depth(prompt.hashes)
        computed = depth > 0 and cache.blocks[prompt.hashes[depth - 1]].computed
        stamp = next(self._stamps)
        self._use(cache, prompt, depth, stamp, computed=computed)
        return Promise(cache, prompt, depth, computed, stamp)

    def settle(self, promise: Promise, cached_share: float | None) -> None:
        """Compare a promise with what its request found when it began.

        A request that ran has computed what it did not find, so that all of it is there now.
        What it did not find although it had been there tells that the worker holds less than was
        thought: the oldest of what it is thought to hold is dropped.

        Args:
            promise: what place() returned.
            cached_share: of the prompt's tokens, what was cached; None if it has not run, so that
                what it would have brought is not there.
        """
        cache, prompt = promise.cache, promise.prompt
        if self._caches.get(cache.instance_id) is not cache:
            return
        if cached_share is None:
            self._withdraw(promise)
            return
        promised = prompt.tokens_of(promise.blocks)
        found = cached_share * prompt.tokens
        block = prompt.ends[-1] / len(prompt.ends)
        if found < promised - block:
            if promise.computed:
                bound = min(cache.bound_tokens, cache.tokens) * SHRINK
                cache.bound_tokens = max(bound, SMALLEST_BOUND_TOKENS)
        elif found:
            cache.bound_tokens *= GROW
        self._use(cache, prompt, len(prompt.hashes), next(self._stamps), computed=True)

    def bound(self, instance_id: str, model: str, tokens: float) -> None:
        """Note how many tokens a worker process can hold, unless that has been learnt already."""
        cache = self._cache(instance_id, model)
        if cache.bound_tokens == math.inf:
            cache.bound_tokens = tokens
            self._shrink(cache)

    def end_instance(self, instance_id: str) -> None:
        """Forget a worker process that is no more."""
        cache = self._caches.pop(instance_id, None)
        if cache is None:
            return
        while cache.blocks:
            self._drop(cache, next(iter(cache.blocks)))
        self._oldest = [entry for entry in self._oldest if entry[2] is not cache]
        heapq.heapify(self._oldest)
        if not any(each.model == cache.model for each in self._caches.values()):
            self._holders.pop(cache.model, None)

    def _cache(self, instance_id: str, model: str) -> Cache:
        cache = self._caches.get(instance_id)
        if cache is not None and cache.model != model:
            self.end_instance(instance_id)
            cache = None
        if cache is None:
            number = next(self._stamps)
            cache = Cache(instance_id, model, number, self._holders.setdefault(model, {}))
            self._caches[instance_id] = cache
        return cache

    def _use(self, cache: Cache, prompt: Prompt, depth: int, stamp: int, *, computed: bool) -> None:
        """Make all blocks of a prompt the latest used, the first block last."""
        hashes, blocks, holders = prompt.hashes, cache.blocks, cache.holders
        size = prompt.ends[-1] / len(prompt.ends)
        there, to_come = _Mark(stamp, size, computed), _Mark(stamp, size, computed=False)
        for place in range(len(hashes) - 1, -1, -1):
            each = hashes[place]
            former = blocks.get(each)
            blocks[each] = there if place < depth else to_come
            if former is not None:
                blocks.move_to_end(each)
                cache.tokens += size - former.tokens
                continue
            cache.tokens += size
            self._entries += 1
            others = holders.get(each)
            holders[each] = cache.alone if others is None else (*others, cache)
        if not cache.is_watched:
            cache.is_watched = True
            heapq.heappush(self._oldest, (stamp, cache.number, cache))
        self._shrink(cache)

    def _withdraw(self, promise: Promise) -> None:
        """Drop what a request would have brought, unless another one uses it since."""
        cache = promise.cache
        for each in promise.prompt.hashes[promise.blocks :]:
            mark = cache.blocks.get(each)
            if mark is not None and mark.stamp == promise.stamp:
                self._drop(cache, each)

    def _shrink(self, cache: Cache) -> None:
        while cache.tokens > cache.bound_tokens and cache.blocks:
            self._drop(cache, next(iter(cache.blocks)))
        while self._entries > self._limit:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        stamp, number, cache = self._oldest[0]
        if not cache.blocks:
            heapq.heappop(self._oldest)
            cache.is_watched = False
            return
        block, mark = next(iter(cache.blocks.items()))
        if mark.stamp != stamp:
            heapq.heapreplace(self._oldest, (mark.stamp, number, cache))
            return
        self._drop(cache, block)

    def _drop(self, cache: Cache, block: int) -> None:
        mark = cache.blocks.pop(block)
        cache.tokens -= mark.tokens
        self._entries -= 1
        holders = cache.holders
        if len(holders[block]) == 1:
            del holders[block]
        else:
            holders[block] = tuple(each for each in holders[block] if each is not cache)
