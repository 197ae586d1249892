"""When a refused request may come back."""

from collections import deque

import pytest

from fastrun.v1.error_pb2 import ErrorReason
from scheduler.fleet import Fleet
from scheduler.queue import Queue
from scheduler.refusals import FreeingRate, Refusals
from scheduler.waiting import Waiting


def refusals(random=0.0, queue=None):
    fleet = Fleet(suspect_after_s=3.0, gone_after_s=5.0, forget_after_s=60.0)
    return Refusals(fleet, queue or Queue(), per_slot=4.0, random=lambda: random)


def test_the_wait_follows_from_the_rate_at_which_slots_free():
    """Ten slots in five seconds: the fourth from now is free in two."""
    rate = FreeingRate()
    for number in range(10):
        rate.record(number * 0.5)
    assert rate.wait_s(4, 5.0) == pytest.approx(2.0)


def test_only_the_last_minute_counts():
    """A rate measured long ago says nothing of now."""
    rate = FreeingRate()
    rate.record(0.0)
    assert rate.wait_s(1, 30.0) == 30.0
    assert rate.wait_s(1, 61.0) == 10.0


def waiting(account_id="acc", *, model="m", number=1):
    return Waiting(
        edge_id="e",
        request_id=f"r{number}",
        generations=deque([0]),
        account_id=account_id,
        model=model,
        excluded=frozenset(),
        front=False,
        arrived_at=0.0,
        asked_at=0.0,
        deadline=10.0,
        number=number,
    )


def full(decided, now, account_id="acc"):
    detail = decided.detail(ErrorReason.ERROR_REASON_QUEUE_FULL, waiting(account_id), now)
    return detail.retry_after_ms


def test_a_wait_is_between_one_second_and_two_minutes():
    """However fast or slow slots free, and also with jitter."""
    for random in (0.0, 0.999):
        fast, slow = refusals(random), refusals(random)
        for number in range(200):
            fast.freed("m", number * 0.001)
        slow.freed("m", 0.0)
        assert 1_000 <= full(fast, 0.2) <= 1_250
        assert full(refusals(random), 0.0) >= 10_000
        assert full(slow, 59.0) <= 120_000


def test_those_refused_together_come_back_apart():
    """Jitter only ever lengthens a wait."""
    assert full(refusals(0.0), 0.0) == 10_000
    assert full(refusals(0.5), 0.0) == 11_250


def test_an_unknown_model_is_no_reason_to_come_back():
    """Its refusal carries no time, and a very long name is cut."""
    reason = ErrorReason.ERROR_REASON_UNKNOWN_MODEL
    detail = refusals().detail(reason, waiting(model="x" * 5_000), 0.0)
    assert not detail.HasField("retry_after_ms")
    assert len(detail.message) < 1_024


def test_who_is_in_nobodys_way_may_come_back_sooner():
    """An account that has nothing waiting is told of its own turn, not of another's fifty."""
    queue = Queue()
    for number in range(50):
        queue.add(waiting("flood", number=number))
    decided = refusals(queue=queue)
    for number in range(101):
        decided.freed("m", number * 1.0)
    assert full(decided, 100.0, "flood") == pytest.approx(51_000, rel=0.05)
    assert full(decided, 100.0, "other") == pytest.approx(2_000, rel=0.05)
