from hypothesis import given
from hypothesis import strategies as st

from fastrun.bench.placement.prefixes import PlacedPrefixes, PrefixMap


def test_placed():
    """Each worker matches up to where what was placed there agrees."""
    placed = PlacedPrefixes(10)
    placed.placed(0, (1, 12, 123))
    placed.placed(1, (1, 13))

    assert placed.matches((1, 12, 124)) == {0: 2, 1: 1}
    assert placed.matches((2,)) == placed.matches(()) == {}
    assert (placed.size(0), placed.size(2)) == (3, 0)


def test_bound():
    """Of a worker as much is remembered as it may have, and ends go before beginnings."""
    placed = PlacedPrefixes(3)
    placed.placed(0, (1, 12))
    placed.placed(0, (2, 22))

    assert placed.size(0) == 3
    assert placed.matches((1, 12)) == {0: 1}
    assert placed.matches((2, 22)) == {0: 2}


@given(
    st.dictionaries(st.integers(0, 4), st.sets(st.integers(0, 6))),
    st.lists(st.integers(0, 6), unique=True, max_size=6),
)
def test_matches(held, blocks):
    """The matches of all workers together are those of each one looked at alone."""
    prefixes = PrefixMap()
    for worker, has in held.items():
        for block in has:
            prefixes.add(worker, block)
    expected = {
        worker: next((at for at, block in enumerate(blocks) if block not in has), len(blocks))
        for worker, has in held.items()
    }

    assert prefixes.matches(blocks) == {each: count for each, count in expected.items() if count}
