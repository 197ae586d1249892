"""The last minute, in cells of a second."""

from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.windows import Window

REQUESTS, TOKENS = attrgetter("requests"), attrgetter("tokens")
ENTRIES = st.lists(st.tuples(st.floats(0, 30), st.integers(0, 1), st.integers(0, 9)), max_size=60)


@given(ENTRIES)
def test_counts_for_a_minute(entries):
    """Each amount counts for 60 s at least, and for less than 61 s."""
    window, now, added = Window(), 0.0, []
    for pause, requests, tokens in entries:
        now += pause
        window.add(requests, tokens, now)
        added.append((now, requests, tokens))
        # Rounded sums of times may differ by a little.
        for age, compare in ((60.0 - 1e-6, int.__le__), (61.0 + 1e-6, int.__ge__)):
            recent = [amounts for at, *amounts in added if at > now - age]
            assert compare(sum(requests for requests, _ in recent), window.requests)
            assert compare(sum(tokens for _, tokens in recent), window.tokens)
    assert len(window._cells) <= 62


@given(ENTRIES, st.integers(1, 50), st.sampled_from([REQUESTS, TOKENS]))
def test_opens(entries, limit, of):
    """It opens when it says, and not before."""
    window, now = Window(), 0.0
    for pause, requests, tokens in entries:
        now += pause
        window.add(requests, tokens, now)
    excess = of(window) + 1 - limit
    if excess > 0:
        wait_s = window.opens_in_s(excess, of, now)
        for later_s, full in ((wait_s * 0.999, True), (wait_s + 1e-6, False)):
            window.lapse(now + later_s)
            assert full == (of(window) >= limit)


def test_take_back():
    """What is taken back counts no more; what has left the window is not taken back twice."""
    window = Window()
    cell = window.add(1, 5, 0.0)
    window.add(1, 2, 0.5)
    window.take_back(cell, 1, 3, 1.0)
    assert (window.requests, window.tokens) == (1, 4)
    assert window.empty_in_s(TOKENS, 1.0) == pytest.approx(59.5)
    window.lapse(60.5)
    assert (window.requests, window.tokens) == (0, 0)
    window.take_back(cell, 1, 2, 61.0)
    assert (window.requests, window.tokens) == (0, 0)


def test_empty_of_one_kind():
    """It is empty of requests when the last of them has left, whatever tokens came since."""
    window = Window()
    window.add(1, 5, 0.0)
    window.add(0, 5, 30.0)
    assert window.empty_in_s(REQUESTS, 40.0) == pytest.approx(20.0)
    assert window.empty_in_s(TOKENS, 40.0) == pytest.approx(50.0)
    window.lapse(70.0)
    assert (window.requests, window.tokens) == (0, 5)
    assert window.empty_in_s(REQUESTS, 70.0) == 0


def test_empty():
    """An empty window is empty at once, and one that may hold nothing never opens."""
    window = Window()
    assert (window.requests, window.tokens) == (0, 0)
    assert window.empty_in_s(REQUESTS, 0.0) == 0
    assert window.opens_in_s(1, REQUESTS, 0.0) == 60.0
