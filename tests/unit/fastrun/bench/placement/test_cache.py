import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrun.bench.placement.cache import PrefixCache


class Log:
    """Holds what a cache says that it has."""

    def __init__(self):
        self.blocks = set()

    def stored(self, worker, block):
        assert block not in self.blocks
        self.blocks.add(block)

    def evicted(self, worker, block):
        self.blocks.remove(block)


def take(cache, blocks, total=None):
    """Run a request up to its first token."""
    matched = cache.match(blocks)
    total = total or len(blocks)
    assert cache.reserve(blocks, matched, total)
    cache.publish(blocks, matched)
    return matched


def test_reuse():
    """What a prompt has left is found by the next one, from the start up to the first that lacks."""
    cache = PrefixCache(10)
    take(cache, (1, 2, 3))
    cache.release((1, 2, 3), 3)

    assert cache.match((1, 2, 9, 3)) == 2
    assert cache.match((9, 1, 2)) == 0
    assert cache.held == 0


def test_eviction():
    """The block that was not used for longest goes first, and the end of a prompt before its start."""
    cache = PrefixCache(4)
    for blocks in ((1, 2), (3, 4)):
        take(cache, blocks)
        cache.release(blocks, 2)
    take(cache, (5,))

    assert [cache.match((1, 2)), cache.match((3, 4)), cache.match((5,))] == [1, 2, 1]


def test_pinned():
    """What runs is not evicted: who finds no room waits."""
    cache = PrefixCache(4)
    take(cache, (1, 2), total=3)

    assert not cache.reserve((7,), 0, 2)
    assert cache.reserve((7,), 0, 1)
    assert cache.held == 4
    cache.release((1, 2), 3)
    assert cache.match((1, 2)) == 2


def test_no_room_beside_what_is_reused():
    """Room that a request's own cached blocks take is no room for the rest of it."""
    cache = PrefixCache(4)
    take(cache, (1, 2))
    cache.release((1, 2), 2)
    take(cache, (7,), total=1)

    assert not cache.reserve((1, 2), 2, 4)
    assert cache.reserve((1, 2), 2, 3)


def test_same_prompt_twice():
    """Two requests that computed the same at once hold it once."""
    cache = PrefixCache(10)
    for _ in range(2):
        assert cache.reserve((1, 2), 0, 3)
    assert cache.held == 6
    for _ in range(2):
        cache.publish((1, 2), 0)
    assert cache.held == 4
    cache.release((1, 2), 3)
    cache.release((1, 2), 3)
    assert cache.held == 0


CHAINS = st.lists(st.integers(0, 3), min_size=1, max_size=5).map(
    lambda path: tuple(hash(tuple(path[: at + 1])) for at in range(len(path)))
)


@given(st.lists(st.tuples(CHAINS, st.integers(0, 2), st.booleans()), max_size=40))
def test_bound(steps):
    """Whatever comes and goes, the cache holds no more than it may, and says exactly what."""
    log = Log()
    cache = PrefixCache(8, follower=log)
    running = []
    for blocks, extra, ends in steps:
        matched = cache.match(blocks)
        assert all(block in log.blocks for block in blocks[:matched])
        if cache.reserve(blocks, matched, len(blocks) + extra):
            cache.publish(blocks, matched)
            running.append((blocks, len(blocks) + extra))
        if ends and running:
            cache.release(*running.pop(0))
        pinned = {block for chain, _ in running for block in chain}
        private = sum(total - len(chain) for chain, total in running)
        assert len(pinned) + private == cache.held <= 8
        assert pinned <= log.blocks
        assert len(log.blocks) + private <= 8
    for blocks, total in running:
        cache.release(blocks, total)
    assert cache.held == 0


def test_too_much_is_released_never():
    """A request that was not there cannot end."""
    with pytest.raises(KeyError):
        PrefixCache(8).release((1,), 1)
