import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth_service.accounts import AccountState
from auth_service.key_events import KeyEvent, KeyEventLog, Page


def events(first, last):
    """The events from one sequence to another, both included."""
    return [
        KeyEvent(number, "acct_x", None, AccountState.APPROVED, None)
        for number in range(first, last + 1)
    ]


def test_follows():
    """A page follows a sequence if its first event is the next, or if there is none."""
    assert Page(events(4, 5), 9).follows(3)
    assert Page([], 3).follows(3)
    assert not Page(events(5, 5), 5).follows(3)  # event 4 was pruned
    assert not Page([], 9).follows(3)  # all of them were pruned
    assert not Page([], 2).follows(3)  # another database


def test_read_to():
    """A page that holds not all events has read to its own last one."""
    assert Page(events(4, 5), 9).read_to == 5
    assert Page([], 9).read_to == 9


def test_gap():
    """What does not follow is not added."""
    log = KeyEventLog(3)
    with pytest.raises(ValueError, match="events after 3 are missing"):
        log.add(Page(events(5, 5), 5))
    assert log.after(3) == []


@given(
    start=st.integers(0, 5),
    counts=st.lists(st.integers(0, 4), max_size=8),
    size=st.integers(1, 6),
    after=st.integers(-2, 40),
)
def test_after(start, counts, size, after):
    """A log tells exactly the events after a sequence, or that it does not know all of them."""
    log = KeyEventLog(start, size)
    last = start
    for count in counts:
        log.add(Page(events(last + 1, last + count), last + count))
        last += count
    assert log.confirmed == last
    known = min(size, last - start)
    if last - known <= after <= last:
        assert log.after(after) == events(after + 1, last)
    else:
        assert log.after(after) is None
