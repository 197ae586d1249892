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
from collections.abc import Collection, Container, Iterable

import msgspec

from fastrun.v1.scheduler_pb2 import Acquire

SMALLEST_BOUND_TOKENS = 2048.0
SHRINK = 0.9
GROW = 1.002


class Prompt(msgspec.Struct, frozen=True):
    """What the scheduler knows of a prompt; token counts are estimates of the edge."""

    tokens: int = 0
    hashes: tuple[int, ...] = ()
    """One for each block, from the beginning."""
    ends: tuple[int, ...] = ()
    """How many tokens there are up to the end of each block."""

    @classmethod
    def of(cls, acquire: Acquire) -> "Prompt":
        """Read an Acquire; blocks without both figures are left out."""
        # Slices are copied in one go, and what is read one by one takes three times as long.
        ends, hashes = tuple(acquire.prefix_tokens[:]), tuple(acquire.prefix_hashes[:])
        if len(ends) != len(hashes):
            blocks = min(len(ends), len(hashes))
            ends, hashes = ends[:blocks], hashes[:blocks]
        return cls(max(acquire.prompt_tokens, ends[-1] if ends else 0), hashes, ends)

    def tokens_of(self, blocks: int) -> int:
        """Return how many tokens so many blocks have."""
        return self.ends[blocks - 1] if blocks else 0


NO_PROMPT = Prompt()
"""Nothing is known of it."""


class _Mark(msgspec.Struct, eq=False):
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


Holders = dict[int, tuple[Cache, ...]]


class Promise(msgspec.Struct, frozen=True, eq=False):
    """What a granted lease was expected to find cached; to be compared with what it found."""

    cache: Cache
    prompt: Prompt
    blocks: int
    computed: bool
    """These blocks were there when it was made, not only to come."""
    marks: tuple[_Mark, _Mark]
    """Of these blocks, and of those that its request brings."""


class PrefixIndex:
    """All caches; bounded in entries, of which each is one block in one cache."""

    def __init__(self, *, entries: int) -> None:
        self._limit = entries
        # What is too much goes when requests end: a decision would have to wait for it.
        self._most = entries + entries // 50
        self._caches: dict[str, Cache] = {}
        self._holders: dict[str, Holders] = {}
        self._stamps = itertools.count(1)
        # Each cache once, by the stamp of its oldest block when it was last looked at.
        self._oldest: list[tuple[int, int, Cache]] = []
        self._entries = 0

    def __len__(self) -> int:
        return self._entries

    def cached_tokens(self, instance_ids: Iterable[str], prompt: Prompt) -> list[int]:
        """Return how many tokens of a prompt each of these worker processes holds."""
        hashes, ends = prompt.hashes, prompt.ends
        return [
            ends[_depth(hashes, cache.blocks) - 1]
            if cache is not None and hashes and hashes[0] in cache.blocks
            else 0
            for cache in map(self._caches.get, instance_ids)
        ]

    def lost_tokens(self, instance_id: str, model: str, prompt: Prompt) -> int:
        """Return how many tokens of a prompt others hold that a worker process does not."""
        most = prompt.tokens_of(_depth(prompt.hashes, self._holders.get(model, {})))
        return most - self.cached_tokens((instance_id,), prompt)[0]

    def holders(self, model: str, prompt: Prompt, *, most: int, random: float) -> list[str]:
        """Return worker processes that hold a beginning of a prompt, the longest ones first.

        Args:
            model: whose workers.
            prompt: whose beginning.
            most: how many at most.
            random: in [0, 1): where among equals to begin.
        """
        table = self._holders.get(model, {})
        depth = _depth(prompt.hashes, table)
        found: dict[str, None] = {}
        seen: tuple[Cache, ...] = ()
        # Others may hold less of it and have less to do.
        while depth and len(found) < most:
            caches = table[prompt.hashes[depth - 1]]
            if len(caches) > len(seen):
                seen = caches
                first = int(random * len(caches))
                for cache in (*caches[first : first + most], *caches[: min(first, most)]):
                    if len(found) < most:
                        found[cache.instance_id] = None
            depth //= 2
        return list(found)

    def place(self, instance_id: str, model: str, prompt: Prompt) -> Promise | None:
        """Note that a worker process is going to compute a prompt, and so to cache it.

        Returns:
            What it holds of it already; None if the prompt has no blocks.
        """
        if not prompt.hashes:
            return None
        cache = self._cache(instance_id, model)
        depth = _depth(prompt.hashes, cache.blocks)
        computed = depth > 0 and cache.blocks[prompt.hashes[depth - 1]].computed
        stamp, size = next(self._stamps), prompt.ends[-1] / len(prompt.ends)
        marks = (_Mark(stamp, size, computed), _Mark(stamp, size, computed=False))
        self._use(cache, prompt.hashes, depth, marks)
        return Promise(cache, prompt, depth, computed, marks)

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
            self._trim()
            return
        promised = prompt.tokens_of(promise.blocks)
        found = cached_share * prompt.tokens
        block = prompt.ends[-1] / len(prompt.ends)
        if found < promised - block:
            if promise.computed:
                bound = min(cache.bound_tokens, cache.tokens) * SHRINK
                cache.bound_tokens = max(bound, SMALLEST_BOUND_TOKENS)
                self._shrink(cache)
        elif found:
            cache.bound_tokens *= GROW
        for mark in promise.marks:
            mark.computed = True
        self._trim()

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
        self._drop(cache, list(cache.blocks))
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

    def _use(
        self, cache: Cache, hashes: tuple[int, ...], depth: int, marks: tuple[_Mark, _Mark]
    ) -> None:
        """Make all blocks of a prompt the latest used, the first block last."""
        blocks, holders, alone = cache.blocks, cache.holders, cache.alone
        there, to_come = marks
        tokens = 0.0
        for each in reversed(hashes[depth:]):
            blocks[each] = to_come
            if holders.setdefault(each, alone) is not alone:
                holders[each] = (*holders[each], cache)
        for each in reversed(hashes[:depth]):
            tokens -= blocks[each].tokens
            blocks[each] = there
            blocks.move_to_end(each)
        cache.tokens += tokens + there.tokens * len(hashes)
        self._entries += len(hashes) - depth
        if not cache.is_watched:
            cache.is_watched = True
            heapq.heappush(self._oldest, (there.stamp, cache.number, cache))
        self._shrink(cache)
        if self._entries > self._most:
            self._trim()

    def _withdraw(self, promise: Promise) -> None:
        """Drop what a request would have brought, unless another one uses it since."""
        cache, mark = promise.cache, promise.marks[1]
        brought = promise.prompt.hashes[promise.blocks :]
        self._drop(cache, [each for each in brought if cache.blocks.get(each) is mark])

    def _shrink(self, cache: Cache) -> None:
        """Drop what was used longest ago, as much as a cache cannot hold."""
        excess = cache.tokens - cache.bound_tokens
        if excess <= 0:
            return
        gone = []
        for block, mark in cache.blocks.items():
            gone.append(block)
            excess -= mark.tokens
            if excess <= 0:
                break
        self._drop(cache, gone)

    def _trim(self) -> None:
        while self._entries > self._limit:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop what was used longest ago, as much as is too much; or see better where it is."""
        stamp, number, cache = self._oldest[0]
        gone = []
        for block, mark in itertools.islice(cache.blocks.items(), self._entries - self._limit):
            if mark.stamp != stamp:
                heapq.heapreplace(self._oldest, (mark.stamp, number, cache))
                break
            gone.append(block)
        self._drop(cache, gone)
        if not cache.blocks:
            heapq.heappop(self._oldest)
            cache.is_watched = False

    def _drop(self, cache: Cache, gone: Collection[int]) -> None:
        """Note that a cache does not hold some blocks any more."""
        blocks, holders, alone = cache.blocks, cache.holders, cache.alone
        tokens = 0.0
        for each in gone:
            tokens += blocks[each].tokens
            del blocks[each]
            if holders[each] is alone:
                del holders[each]
            else:
                others = tuple([other for other in holders[each] if other is not cache])
                holders[each] = others[0].alone if len(others) == 1 else others
        cache.tokens -= tokens
        self._entries -= len(gone)


def _depth(hashes: tuple[int, ...], blocks: Container[int]) -> int:
    """Return how many blocks of a prompt are there, from its beginning."""
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
