"""Which workers have which beginnings of prompts cached."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrun.v1.scheduler_pb2 import Acquire
from scheduler.prefix_index import PrefixIndex, Prompt


@pytest.fixture
def index():
    return PrefixIndex(entries=1000)


def prompt(*hashes, block=100):
    return Prompt(
        tokens=block * len(hashes),
        hashes=hashes,
        ends=tuple(block * (number + 1) for number in range(len(hashes))),
    )


def depth(index, instance_id, asked):
    """Return how many blocks of a prompt a worker holds."""
    [tokens] = index.cached_tokens([instance_id], asked)
    assert tokens in (0, *asked.ends)
    return (0, *asked.ends).index(tokens)


def holders(index, *hashes, most=9, random=0.0):
    return index.holders("m", prompt(*hashes), most=most, random=random)


def test_what_is_placed_is_found():
    """As far as prompts begin alike, by whoever asks."""
    index = PrefixIndex(entries=1000)
    index.place("i1", "m", prompt(1, 2, 3, 4))
    assert depth(index, "i1", prompt(1, 2, 3, 9, 10)) == 3
    assert depth(index, "i1", prompt(1, 2, 3, 4, 5)) == 4
    assert depth(index, "i1", prompt(9, 2)) == 0
    assert depth(index, "i2", prompt(1)) == 0
    assert holders(index, 1, 2, 9) == ["i1"]
    assert index.holders("n", prompt(1, 2), most=9, random=0.0) == []


def test_the_longest_holders_come_first(index):
    """And those that hold less of it after them, as many as are wanted."""
    index.place("i1", "m", prompt(1))
    index.place("i2", "m", prompt(1, 2))
    index.place("i3", "m", prompt(1, 2, 3, 4))
    assert holders(index, 1, 2, 3, 4) == ["i3", "i2", "i1"]
    assert holders(index, 1, 2, 3, 4, most=1) == ["i3"]
    assert set(holders(index, 1, most=2, random=0.9)) == {"i3", "i1"}


def test_what_a_worker_lacks_is_lost_there(index):
    """What the longest holder has and it has not; nothing, where nobody holds anything."""
    index.place("i1", "m", prompt(1, 2, 3))
    index.place("i2", "m", prompt(1))
    asked = prompt(1, 2, 3, 4)
    assert [index.lost_tokens(each, "m", asked) for each in ("i1", "i2", "i3")] == [0, 200, 300]
    assert index.lost_tokens("i4", "n", asked) == index.lost_tokens("i2", "m", prompt(9)) == 0
    assert index.lost_tokens("i2", "m", Prompt(tokens=5)) == 0


def test_a_prompt_without_blocks_is_not_kept_in_mind(index):
    """Nothing is known of it, and nothing promised."""
    assert index.place("i1", "m", Prompt(tokens=5)) is None
    assert len(index) == 0
    assert index.holders("m", Prompt(), most=9, random=0.0) == []


def test_the_blocks_of_an_acquire_have_both_figures():
    """Hashes without token counts, or the other way round, are left out."""
    acquire = Acquire(prefix_hashes=[7, 8, 9], prefix_tokens=[10, 20], prompt_tokens=25)
    assert Prompt.of(acquire) == Prompt(25, (7, 8), (10, 20))
    assert Prompt.of(Acquire(prefix_tokens=[10])) == Prompt()


def test_the_least_recently_used_goes_first():
    """Over all workers, and of one prompt its end before its beginning."""
    index = PrefixIndex(entries=6)
    index.place("i1", "m", prompt(1, 2, 3))
    index.place("i2", "m", prompt(11, 12, 13))
    index.place("i1", "m", prompt(1, 2, 3))
    index.place("i3", "m", prompt(21, 22))
    assert len(index) == 6
    assert depth(index, "i2", prompt(11, 12, 13)) == 1
    assert depth(index, "i1", prompt(1, 2, 3)) == 3
    index.place("i3", "m", prompt(31, 32))
    assert depth(index, "i2", prompt(11)) == 0
    assert depth(index, "i1", prompt(1, 2, 3)) == 2


def test_a_worker_holds_no_more_than_it_can(index):
    """By its own bound, without a thing done to others."""
    index.bound("i1", "m", 300.0)
    index.place("i2", "m", prompt(1, 2, 3, 4))
    index.place("i1", "m", prompt(1, 2))
    index.place("i1", "m", prompt(5, 6))
    assert depth(index, "i1", prompt(1, 2)) == 1
    assert depth(index, "i1", prompt(5, 6)) == 2
    assert depth(index, "i2", prompt(1, 2, 3, 4)) == 4


def test_what_never_ran_is_not_there(index):
    """What a request would have brought is dropped, and not what was there before."""
    index.place("i1", "m", prompt(1, 2))
    promise = index.place("i1", "m", prompt(1, 2, 3, 4))
    index.settle(promise, None)
    assert depth(index, "i1", prompt(1, 2, 3, 4)) == 2


def test_what_another_uses_meanwhile_stays(index):
    """A second request was promised the same blocks: it brings them if the first does not."""
    first = index.place("i1", "m", prompt(1, 2))
    index.place("i1", "m", prompt(1, 2))
    index.settle(first, None)
    assert depth(index, "i1", prompt(1, 2)) == 2


def bounded(index, blocks=100):
    """Fill a worker with so many prompts of one block, all computed, and bound it there."""
    for each in range(blocks):
        index.settle(index.place("i1", "m", prompt(each)), 0.0)
    return lambda: sum(depth(index, "i1", prompt(each)) for each in range(blocks))


def test_a_broken_promise_shows_that_a_cache_is_smaller(index):
    """What was computed before and is not found: the oldest that is thought to be there goes."""
    held = bounded(index)
    promise = index.place("i1", "m", prompt(50))
    assert promise.blocks == 1
    index.settle(promise, 0.0)
    assert held() == 100
    bigger = index.place("i1", "m", prompt(60, 200, 201))
    index.settle(bigger, 0.0)
    other = index.place("i1", "m", prompt(60, 200, 201))
    index.settle(other, 0.0)
    assert held() < 100
    assert depth(index, "i1", prompt(0)) == 0
    assert depth(index, "i1", prompt(60, 200, 201)) == 3


def test_a_promise_to_be_computed_is_no_evidence(index):
    """Two at once with the same beginning: the second could not find what the first computes."""
    held = bounded(index)
    first = index.place("i1", "m", prompt(50, 300, 301, 302))
    second = index.place("i1", "m", prompt(50, 300, 301, 302))
    index.settle(second, 0.0)
    index.settle(first, 0.0)
    assert held() == 100


def test_a_worker_that_caches_nothing_is_promised_little(index):
    """With each broken promise less is thought to be there, down to a bound."""
    index = PrefixIndex(entries=100_000)
    long = prompt(*range(1, 401))
    for _ in range(60):
        index.settle(index.place("i1", "m", long), 0.0)
    assert depth(index, "i1", long) * 100 < 2200


def test_entries_die_with_the_instance(index):
    """Nothing of it is left, and others keep theirs."""
    index.place("i1", "m", prompt(1, 2))
    index.place("i2", "m", prompt(1))
    promise = index.place("i1", "m", prompt(1, 2, 3))
    index.end_instance("i1")
    assert holders(index, 1, 2, 3) == ["i2"]
    index.settle(promise, 0.5)
    index.end_instance("i2")
    assert (len(index), index._holders, index._oldest, index._caches) == (0, {}, [], {})


def test_an_instance_that_changes_its_model_begins_anew(index):
    """What it had of the other model is gone."""
    index.place("i1", "m", prompt(1))
    index.place("i1", "n", prompt(2))
    assert holders(index, 1) == []
    assert index.holders("n", prompt(2), most=1, random=0.0) == ["i1"]


CONVERSATIONS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 6), st.integers(0, 4)),
    max_size=60,
)


@given(events=CONVERSATIONS)
def test_whatever_happens_the_books_agree(events):
    """What is left of each prompt is its beginning; the bound holds; no entry is without holder."""
    index = PrefixIndex(entries=12)
    index.bound("i0", "m", 500.0)
    for worker, conversation, length, event in events:
        hashes = tuple(conversation * 100 + block for block in range(length))
        if event == 4:
            index.end_instance(f"i{worker}")
            continue
        promise = index.place(f"i{worker}", "m", prompt(*hashes))
        if event < 3:
            index.settle(promise, (None, 0.0, 1.0)[event])
        caches = index._caches.values()
        assert len(index) == sum(len(cache.blocks) for cache in caches) <= 12
        table = index._holders["m"]
        assert sum(len(each) for each in table.values()) == len(index)
        for cache in caches:
            tokens = sum(mark.tokens for mark in cache.blocks.values())
            assert cache.tokens == pytest.approx(tokens)
            assert cache.tokens <= cache.bound_tokens
            assert all(cache in table[block] for block in cache.blocks)
            whole = tuple(conversation * 100 + block for block in range(6))
            held = depth(index, cache.instance_id, prompt(*whole))
            assert [each in cache.blocks for each in whole] == [place < held for place in range(6)]
