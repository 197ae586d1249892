"""Edges that come and go."""

import pytest

from fastrun.v1.scheduler_pb2 import EdgeHello
from scheduler.edges import Edges


@pytest.fixture
def edges():
    return Edges(gone_after_s=5.0)


def test_an_edge_that_stays_away_is_gone(edges):
    """5 s after its session has ended an edge is forgotten, in the order of leaving."""
    first, _ = edges.join(EdgeHello(edge_id="e1"), object())
    second, _ = edges.join(EdgeHello(edge_id="e2"), object())
    edges.leave(second, 1.0)
    edges.leave(first, 2.0)
    assert edges.connected() == []
    assert edges.next_due() == 6.0
    assert edges.expire(6.5) == [second]
    assert edges.expire(7.0) == [first]
    assert edges.get("e1") is None
    assert edges.next_due() is None


def test_an_edge_that_is_back_in_time_stays(edges):
    """A new session ends the wait for it."""
    away, _ = edges.join(EdgeHello(edge_id="e1"), object())
    edges.leave(away, 1.0)
    back, former = edges.join(EdgeHello(edge_id="e1", lease_ids=["l1"]), object())
    assert former is away
    assert back.listed == {"l1"}
    assert edges.expire(100.0) == []
    assert edges.connected() == [back]


def test_an_edge_known_from_a_lease_is_waited_for(edges):
    """The edge of a lease that was found running has 5 s to come."""
    expected = edges.expect("e1", 1.0)
    assert edges.expect("e1", 3.0) is expected
    assert edges.expire(6.0) == [expected]
