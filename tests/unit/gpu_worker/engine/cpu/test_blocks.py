"""The block pool: holds, idle blocks, and digests that never meet by accident."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engine.cpu.blocks import BlockPool, chain_digest, chain_start


def test_allocates_every_block_once():
    """A pool gives out each of its blocks once and then says that it has none."""
    pool = BlockPool(3)
    assert {0, 1, 2} == {pool.allocate() for _ in range(3)}
    assert pool.allocate() is None
    assert (pool.held, pool.available) == (3, 0)


def test_released_block_comes_back():
    """A block that nobody holds can be allocated again."""
    pool = BlockPool(1)
    block = pool.allocate()
    pool.release(block)
    assert block == pool.allocate()


def test_published_block_is_shared():
    """A published block is found by its digest and stays held until the last holder leaves."""
    pool = BlockPool(2)
    block = pool.allocate()
    pool.publish(block, b"a")
    assert block == pool.find(b"a")
    pool.release(block)
    assert pool.held == 1
    pool.release(block)
    assert pool.held == 0


def test_idle_block_is_found_again():
    """What nobody holds any more stays findable while its memory is not needed."""
    pool = BlockPool(2)
    block = pool.allocate()
    pool.publish(block, b"a")
    pool.release(block)
    assert block == pool.find(b"a")
    assert pool.held == 1


def test_least_recently_used_block_is_given_away_first():
    """Without free blocks, the idle block that was used longest ago loses its content."""
    pool = BlockPool(2)
    first, second = pool.allocate(), pool.allocate()
    pool.publish(first, b"a")
    pool.publish(second, b"b")
    pool.release(first)
    pool.release(second)
    pool.release(pool.find(b"a"))
    assert second == pool.allocate()
    assert pool.find(b"b") is None
    assert first == pool.find(b"a")


def test_first_published_block_stays():
    """Of two blocks of equal content the second is not published and becomes free at once."""
    pool = BlockPool(2)
    first, second = pool.allocate(), pool.allocate()
    pool.publish(first, b"a")
    pool.publish(second, b"a")
    pool.release(second)
    pool.release(first)
    assert first == pool.find(b"a")


def test_digests_depend_on_salt_parent_and_tokens():
    """Any difference in salt, earlier blocks or tokens gives another digest."""
    start = chain_start("account")
    digests = [
        chain_digest(start, b"12"),
        chain_digest(start, b"21"),
        chain_digest(chain_start("other"), b"12"),
        chain_digest(chain_digest(start, b"12"), b"12"),
    ]
    assert len(set(digests)) == 4
    assert chain_digest(chain_start("account"), b"12") == digests[0]


@given(st.lists(st.tuples(st.sampled_from("apr"), st.integers(0, 9)), max_size=60))
def test_no_block_is_lost(actions):
    """Whatever is allocated, published, found and released: all blocks are there in the end."""
    pool = BlockPool(4)
    held: list[int] = []
    for action, number in actions:
        if action == "a":
            block = pool.allocate()
        elif action == "p" and held:
            pool.publish(held[number % len(held)], b"%d" % number)
            block = pool.find(b"%d" % number)
        elif action == "r" and held:
            pool.release(held.pop(number % len(held)))
            block = None
        else:
            block = None
        if block is not None:
            held.append(block)
        assert len(set(held)) == pool.held
    for block in held:
        pool.release(block)
    assert pool.available == 4
    assert len({pool.allocate() for _ in range(4)}) == 4
