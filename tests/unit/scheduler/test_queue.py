"""Whose turn it is."""

import itertools
from collections import deque
from random import Random

import pytest

from scheduler.queue import Queue
from scheduler.waiting import Waiting

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
    account_id="acc",
    **fields,
):
    return Waiting(
        edge_id=edge_id,
        request_id=request_id,
        generations=deque(generations),
        account_id=account_id,
        model=model,
        excluded=frozenset(fields.pop("excluded", ())),
        front=front,
        arrived_at=arrived_at,
        asked_at=arrived_at,
        deadline=deadline,
        number=next(numbers),
        **fields,
    )


@pytest.fixture
def queue():
    return Queue()


def stand(queue, each):
    """Let it wait; its position."""
    queue.add(each)
    return queue.line(each.model).position(each)


def order(queue, model="m"):
    return [each.request_id for each in queue.line(model)]


def test_first_come_first_served(queue):
    """Of one account, who began to wait earlier stands earlier, whenever it came here."""
    positions = [
        stand(queue, waiting("b", arrived_at=2.0)),
        stand(queue, waiting("c", arrived_at=2.0)),
        stand(queue, waiting("a", arrived_at=1.0)),
    ]
    assert positions == [1, 2, 1]
    assert order(queue) == ["a", "b", "c"]


def test_the_front_goes_first(queue):
    """A request whose lease was refused stands before all others, in order among its like."""
    queue.add(waiting("a"))
    assert stand(queue, waiting("f", arrived_at=1.0, front=True)) == 1
    assert stand(queue, waiting("g", arrived_at=2.0, front=True)) == 2
    assert order(queue) == ["f", "g", "a"]


def test_each_model_has_a_line_of_its_own(queue):
    """Positions count within a model; a line that empties is gone."""
    first = waiting("a")
    queue.add(first)
    assert stand(queue, waiting("b", model="n")) == 1
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
    assert stand(queue, retry) == 1
    line = queue.line("m")
    assert (line.requests, line.slots, len(line)) == (1, 3, 2)
    assert list(queue.expired(5.0)) == [retry]
    assert queue.of_request("e1", "a") == [rest]
    assert (line.requests, line.slots) == (1, 2)
    queue.remove(rest)
    assert (line.requests, line.slots) == (0, 0)


def test_what_was_running_goes_before_all(queue):
    """Resumed requests stand before refused leases, with the deadline that they came with."""
    queue.add(waiting("a"))
    queue.add(waiting("f", front=True))
    running = waiting("r", arrived_at=3.0, deadline=30.0, generations=(0, 1), resume=True)
    assert stand(queue, running) == 1
    assert order(queue) == ["r", "f", "a"]
    assert queue.take(running, 4.0) == 0
    assert order(queue) == ["r", "f", "a"]
    assert (queue.line("m").slots, queue.of_request("e1", "r")) == (3, [running])
    assert queue.take(running, 5.0) == 1
    assert order(queue) == ["f", "a"]
    assert queue.next_deadline() == 10.0


def test_nobody_stands_behind_one_that_waits_for_another_worker(queue):
    """Of those that exclude the same workers one is asked whether a slot suits it, and then others."""
    for number in range(5):
        queue.add(waiting(f"x{number}", front=True, excluded=["w1"]))
    queue.add(waiting("y", excluded=["w2"]))
    queue.add(waiting("f", front=True))
    queue.add(waiting("a"))
    queue.add(waiting("b"))
    heads = [each.request_id for each in queue.line("m").heads()]
    assert heads == ["x0", "f", "y", "a"]


def test_positions_are_those_of_the_order(queue):
    """Whatever the accounts and sizes, a position says how many places have their turn by then."""
    random = Random(1)
    for number in range(200):
        queue.add(
            waiting(
                f"r{number}",
                account_id=f"a{random.randrange(9)}",
                arrived_at=random.randrange(50),
                tokens=random.randrange(1, 40),
                front=random.random() < 0.1,
                excluded=random.choice([(), (), (), ("w1",), ("w2",)]),
            )
        )
    line = queue.line("m")
    assert [line.position(each) for each in line] == list(range(1, 201))


def test_those_who_give_up_leave_nothing_behind(queue):
    """However many come and go while one waits, their deadlines are not all kept."""
    queue.add(waiting("a", deadline=50.0))
    for number in range(1000):
        gone = waiting(f"g{number}", deadline=100.0)
        queue.add(gone)
        queue.remove(gone)
    assert len(queue._deadlines) < 200
    assert queue.next_deadline() == 50.0
