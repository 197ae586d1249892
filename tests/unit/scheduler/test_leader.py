"""The term that a scheduler leads with."""

import itertools

import pytest

from scheduler.leader import Leadership


@pytest.fixture
def leader():
    numbers = itertools.count()
    return Leadership(lambda: b"%d" % next(numbers), contested=False)


def test_the_term_rises_above_any_that_another_scheduler_gave(leader):
    """A Hello from under a higher term raises ours, with a new key for the leases."""
    key = leader.lease_key
    assert leader.hear("w", 7, first=True)
    assert leader.term == 8
    assert leader.lease_key != key


def test_the_same_number_of_another_scheduler_is_another_term(leader):
    """A peer that was never told this term here has it from elsewhere."""
    assert leader.hear("w", 1, first=True)
    assert leader.term == 2


def test_our_own_term_said_back_changes_nothing(leader):
    """A peer that reconnects carries the term it was told."""
    assert leader.tell("w") == 1
    assert not leader.hear("w", 1, first=True)
    assert not leader.hear("new", 0, first=True)
    assert leader.term == 1


def test_after_a_rise_everybody_must_be_told_again(leader):
    """What was told before the rise does not make the new term ours to them."""
    leader.tell("w")
    leader.hear("v", 1, first=True)
    assert leader.hear("w", 2, first=True)
