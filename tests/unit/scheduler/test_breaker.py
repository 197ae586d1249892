"""When a worker that fails is passed over."""

import math

import pytest

from scheduler.breaker import Breaker, BreakerPolicy


@pytest.fixture
def breaker():
    return Breaker(BreakerPolicy(failures=3, open_s=10.0))


def fail(breaker, *lease_ids, now=100.0):
    for lease_id in lease_ids:
        breaker.failed(lease_id, now)


def test_failures_in_a_row_open_it(breaker):
    """The third one does, and not two; from then on nobody passes until its time is over."""
    fail(breaker, "a", "b")
    assert breaker.passes(100.0)
    fail(breaker, "c")
    assert [breaker.passes(now) for now in (100.0, 109.9, 110.0)] == [False, False, True]
    assert breaker.reopens_at == 110.0


def test_a_success_between_begins_anew(breaker):
    """Failures count in a row only."""
    fail(breaker, "a", "b")
    breaker.succeeded("c")
    fail(breaker, "d", "e")
    assert breaker.passes(100.0)
    fail(breaker, "f")
    assert not breaker.passes(100.0)


def test_each_lease_counts_once(breaker):
    """A lease that is told of twice failed once, and one that is not known counts each time."""
    fail(breaker, "a", "a", "a", "a")
    assert breaker.passes(100.0)
    fail(breaker, "", "")
    assert not breaker.passes(100.0)


def test_a_failure_is_the_last_word(breaker):
    """The worker frees each lease as if it had ended well, before or after its edge says no."""
    for lease_id in ("a", "b", "c"):
        breaker.succeeded(lease_id)
        fail(breaker, lease_id)
    assert not breaker.passes(100.0)


def test_a_failed_lease_is_no_success_afterwards(breaker):
    """What its worker says of a failed request does not close the breaker."""
    fail(breaker, "a", "b", "c")
    breaker.succeeded("c")
    assert not breaker.passes(100.0)
    breaker.succeeded("d")
    assert breaker.passes(100.0)


def test_when_its_time_is_over_one_request_tries(breaker):
    """A second one passes only when the first has ended without an answer to the question."""
    fail(breaker, "a", "b", "c")
    breaker.granted("d")
    assert not breaker.passes(200.0)
    assert breaker.reopens_at == math.inf
    breaker.ended("x")
    assert not breaker.passes(200.0)
    breaker.ended("d")
    assert breaker.passes(200.0)


def test_a_trial_decides(breaker):
    """Its success closes the breaker, its failure opens it for as long again."""
    fail(breaker, "a", "b", "c")
    breaker.granted("d")
    fail(breaker, "d", now=115.0)
    assert [breaker.passes(now) for now in (115.0, 124.9, 125.0)] == [False, False, True]
    breaker.granted("e")
    breaker.succeeded("e")
    assert breaker.passes(125.0)
    fail(breaker, "f", "g")
    assert breaker.passes(125.0)


def test_what_fails_while_it_is_open_does_not_prolong_it(breaker):
    """Of many requests that a worker loses at once, the first ones open it."""
    fail(breaker, "a", "b", "c", "d")
    fail(breaker, "e", now=109.0)
    assert breaker.passes(110.0)


def test_it_remembers_no_more_than_it_needs(breaker):
    """Old outcomes are forgotten."""
    for number in range(1000):
        breaker.succeeded(f"l{number}")
    assert len(breaker._outcomes) == 16
