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


def test_two_without_a_database_do_not_outbid_each_other(leader):
    """Who has just heard a higher term from another scheduler does not raise ours above it."""
    leader.tell("w")
    assert not leader.hear("w", 5, first=False)
    assert leader.term == 1


@pytest.fixture
def contender():
    numbers = itertools.count(1)
    return Leadership(lambda: b"%d" % next(numbers), contested=True)


def test_without_the_row_it_stands_by(contender):
    """It leads with the term that it has the row with, and has a key then."""
    assert (contender.leads, contender.term, contender.lease_key) == (False, 0, b"")
    assert contender.took(3)
    assert (contender.leads, contender.term) == (True, 3)
    assert contender.lease_key
    assert not contender.took(3)


def test_another_holder_ends_it_only_with_a_higher_term(contender):
    """A row that was restored from a backup does not."""
    contender.took(3)
    assert not contender.refused(2)
    assert contender.term == 3
    assert contender.refused(4)
    assert (contender.leads, contender.lease_key, contender.least) == (False, b"", 5)


def test_any_peer_may_tell_of_a_higher_term(contender):
    """Also in the midst of a session; the next taking goes above it."""
    contender.took(3)
    contender.tell("w")
    assert not contender.hear("w", 3, first=True)
    assert contender.hear("w", 7, first=False)
    assert not contender.leads
    assert contender.least == 8
    assert not contender.took(4)
    assert contender.took(8)


def test_the_same_term_from_elsewhere_ends_it(contender):
    """Two rows, or one that was set back, must not give two leaders one term."""
    contender.took(3)
    assert contender.hear("stranger", 3, first=True)
    assert contender.least == 4


def test_only_who_was_told_our_term_knows_it(contender):
    """A Hello that carries it is of this term; one that is as high by chance is not."""
    contender.took(3)
    contender.tell("w")
    assert contender.knows("w", 3)
    assert not contender.knows("w", 2)
    assert not contender.knows("v", 3)
    contender.refused(4)
    assert not contender.knows("w", 0)


def test_no_term_is_beyond_what_postgres_counts(contender):
    """A broken peer cannot keep all schedulers from leading."""
    contender.took(3)
    assert not contender.hear("w", 2**63, first=True)
    assert contender.term == 3
