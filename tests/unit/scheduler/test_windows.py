"""The last minute, in cells of a second."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.windows import Window

ENTRIES = st.lists(st.tuples(st.floats(0, 30), st.integers(0, 9)), max_size=60)


@given(ENTRIES)
def test_counts_for_a_minute(entries):
    """Each amount counts for 60 s at least, and for less than 61 s."""
    window, now, added = Window(), 0.0, []
    for pause, amount in entries:
        now += pause
        window.add(amount, now)
        added.append((now, amount))
        # Rounded sums of times may differ by a little.
        for age, compare in ((60.0 - 1e-6, int.__le__), (61.0 + 1e-6, int.__ge__)):
            assert compare(sum(n for at, n in added if at > now - age), window.total(now))
    assert len(window._cells) <= 62


@given(ENTRIES, st.integers(1, 50))
def test_opens(entries, limit):
    """It opens when it says, and not before."""
    window, now = Window(), 0.0
    for pause, amount in entries:
        now += pause
        window.add(amount, now)
    wait_s = window.opens_in_s(1, limit, now)
    if wait_s:
        assert window.total(now) >= limit
        assert window.total(now + wait_s * 0.999) >= limit
        assert window.total(now + wait_s + 1e-6) < limit


def test_take_back():
    """What is taken back counts no more; what has left the window is not taken back twice."""
    window = Window()
    cell = window.add(5, 0.0)
    window.add(2, 0.5)
    window.take_back(cell, 3, 1.0)
    assert window.total(1.0) == 4
    assert window.empty_in_s(1.0) == pytest.approx(59.5)
    assert window.total(60.5) == 0
    window.take_back(cell, 2, 61.0)
    assert window.total(61.0) == 0


def test_empty():
    """An empty window is open and is empty at once."""
    window = Window()
    assert window.opens_in_s(1, 1, 0.0) == 0
    assert window.empty_in_s(0.0) == 0
    assert window.opens_in_s(1, 0, 0.0) == 60.0
