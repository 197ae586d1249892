"""Whose turn it is."""

import itertools
from collections import deque

import pytest

from scheduler.queue import Queue, Waiting

numbers = itertools.count(1)


def waiting(
    request_id,
    *,
    generations=(0,),
    arrived_at=0.0,
    deadline=10.0,
    front=False,
    model="m",
    edge_id="e1",
):
    return Waiting(
        edge_id=edge_id,
        request_id=request_id,
        generations=deque(generations),
        account_id="acc",
        model=model,
        excluded=frozenset(),
        front=front,
        arrived_at=arrived_at,
        asked_at=arrived_at,
        deadline=deadline,
        number=next(numbers),
    )


@pytest.fixture
def queue():
    return Queue()


def order(queue, model="m"):
    return [each.request_id for each in queue.line(model)]


def test_first_come_first_served(queue):
    """Who began to wait earlier stands earlier, whenever the request came here."""
    positions = [
        queue.add(waiting("b", arrived_at=2.0)),
        queue.add(waiting("c", arrived_at=2.0)),
        queue.add(waiting("a", arrived_at=1.0)),
    ]
    assert positions == [1, 2, 1]
    assert order(queue) == ["a", "b", "c"]


def test_the_front_goes_first(queue):
    """A request whose lease was refused stands before all others, in order among its like."""
    queue.add(waiting("a"))
    assert queue.add(waiting("f", arrived_at=1.0, front=True)) == 1
    assert queue.add(waiting("g", arrived_at=2.0, front=True)) == 2
    assert order(queue) == ["f", "g", "a"]


def test_each_model_has_a_line_of_its_own(queue):
    """Positions count within a model; a line that empties is gone."""
    first = waiting("a")
    queue.add(first)
    assert queue.add(waiting("b", model="n")) == 1
    queue.remove(first)
    assert queue.models() == ["n"]
    assert len(queue) == 1


def test_deadlines_come_in_their_own_order(queue):
    """What has waited as long as it may leaves the queue, whatever its place."""
    for request_id, deadline in (("a", 9.0), ("b", 3.0), ("c", 5.0)):
        queue.add(waiting(request_id, deadline=deadline))
    assert queue.next_deadline() == 3.0
    assert [each.request_id for each in queue.expired(5.0)] == ["b", "c"]
    assert order(queue) == ["a"]
    assert queue.next_deadline() == 9.0


def test_what_has_left_has_no_deadline(queue):
    """Cancelled and granted requests do not wake anybody."""
    gone = waiting("a", deadline=1.0)
    queue.add(gone)
    queue.remove(gone)
    assert queue.next_deadline() is None
    assert list(queue.expired(2.0)) == []


def test_a_request_that_came_back_has_its_new_deadline(queue):
    """The deadline of an earlier wait of the same request means nothing."""
    old, new = waiting("a", deadline=1.0), waiting("a", deadline=7.0)
    queue.add(old)
    queue.remove(old)
    queue.add(new)
    assert queue.next_deadline() == 7.0


def test_requests_are_found_by_edge(queue):
    """Two edges may use the same request id."""
    first, second = waiting("a"), waiting("a", edge_id="e2")
    queue.add(first)
    queue.add(second)
    assert queue.of_request("e2", "a") == [second]
    assert queue.of_edge("e1") == [first]
    queue.remove(first)
    assert queue.of_request("e1", "a") == []
    assert order(queue) == ["a"]


def test_generations_of_one_place_leave_one_by_one(queue):
    """After each of them the place moves behind those who wait, and has no deadline any more."""
    many = waiting("a", generations=(0, 2, 5))
    queue.add(many)
    queue.add(waiting("b", arrived_at=1.0))
    assert (queue.line("m").slots, queue.line("m").requests) == (4, 2)
    assert queue.take(many, 2.0) == 0
    assert order(queue) == ["b", "a"]
    (left,) = queue.of_request("e1", "a")
    assert queue.take(left, 3.0) == 2
    assert (order(queue), queue.line("m").slots) == (["b", "a"], 2)
    (left,) = queue.of_request("e1", "a")
    assert list(queue.expired(1e9)) != [left]
    assert queue.take(left, 4.0) == 5
    assert queue.of_request("e1", "a") == []
    assert queue.next_deadline() is None


def test_a_request_with_two_places_is_one_request(queue):
    """They count as one, and each has its own deadline."""
    rest, retry = (
        waiting("a", generations=(1, 2)),
        waiting("a", generations=(0,), front=True, deadline=5.0),
    )
    queue.add(rest)
    assert queue.add(retry) == 1
    line = queue.line("m")
    assert (line.requests, line.slots, len(line)) == (1, 3, 2)
    assert list(queue.expired(5.0)) == [retry]
    assert queue.of_request("e1", "a") == [rest]
    assert (line.requests, line.slots) == (1, 2)
    queue.remove(rest)
    assert (line.requests, line.slots) == (0, 0)
