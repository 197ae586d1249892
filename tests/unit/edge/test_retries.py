"""When a generation that a worker has lost is tried again."""

import pytest

from edge.retries import AttemptError, Retries
from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason

DRAINING = ErrorReason.ERROR_REASON_DRAINING
FAILED = ErrorReason.ERROR_REASON_ENGINE_FAILED
MOVED = ErrorReason.ERROR_REASON_MOVED
NO_SLOT = ErrorReason.ERROR_REASON_NO_SLOT
NO_WORKER = ErrorReason.ERROR_REASON_NO_WORKER
UNAVAILABLE = ErrorReason.ERROR_REASON_UNAVAILABLE


@pytest.fixture
def retries():
    """A generation that nothing has happened to."""
    return Retries(queue_timeout_s=10, resume_timeout_s=30, lost=set())


def failure(reason=FAILED, **fields):
    return AttemptError(ServiceError(reason, "why"), **fields)


def lose(retries, reason=FAILED, worker="w", held_s=1.0, **fields):
    """Fail on a worker; return the pause before the next try."""
    return retries.after_attempt(failure(reason, **fields), worker, f"{worker}-1", held_s)


def reason_of(caught):
    return caught.value.detail.reason


def test_refusals_count_against_nobody(retries):
    """A refused lease excludes no worker, waits ever longer, and goes to the head."""
    assert not retries.front
    pauses = [lose(retries, NO_SLOT, held_s=0.001) for _ in range(10)]
    assert pauses[:3] == [0.01, 0.02, 0.04]
    assert max(pauses) == 0.25
    assert retries.excluded == ()
    assert retries.front
    assert not retries.resumes


def test_refusals_end_with_the_queue_time(retries):
    """Being refused counts as waiting; its end is a full queue's end."""
    retries.waited_s = 9.99
    with pytest.raises(ServiceError) as caught:
        lose(retries, ErrorReason.ERROR_REASON_LEASE_REFUSED, held_s=0.001)
    assert reason_of(caught) == ErrorReason.ERROR_REASON_QUEUE_TIMEOUT


def test_two_other_workers(retries):
    """A failure excludes its worker; the third is the last."""
    assert lose(retries, worker="a") == 0
    assert lose(retries, worker="b", ran=True) == 0
    assert retries.excluded == ("a", "b")
    with pytest.raises(ServiceError) as caught:
        lose(retries, worker="c")
    assert reason_of(caught) == FAILED


@pytest.mark.parametrize("ran", [False, True])
def test_one_death(retries, ran):
    """A request on which a second worker dies is not tried again, wherever it stood."""
    lose(retries, worker="a", died=True)
    with pytest.raises(ServiceError) as caught:
        lose(retries, worker="b", died=True, ran=ran)
    assert reason_of(caught) == FAILED


def test_a_dead_worker_may_come_back(retries):
    """Its process is left out, and not the one that follows."""
    lose(retries, worker="a", died=True)
    assert retries.excluded == ("a-1",)


def test_moves_are_no_deaths(retries):
    """Any number of them is survived, and leaves out nobody."""
    lose(retries, died=True)
    pauses = [lose(retries, MOVED, ran=True) for _ in range(100)]
    assert max(pauses) == 0.25
    assert retries.excluded == ("w-1",)
    with pytest.raises(ServiceError):
        lose(retries, died=True)


def test_what_ran_goes_ahead_and_waits_anew(retries):
    """Once a worker had it, each loss gives it its time again, and refusals use it up."""
    retries.waited_s = 9.0
    lose(retries, MOVED, ran=True)
    assert (retries.resumes, retries.timeout_s, retries.waited_s) == (True, 30, 0)
    lose(retries, NO_SLOT, held_s=0.5)
    assert 0.5 < retries.waited_s < 1
    retries.waited_s = 29.9
    with pytest.raises(ServiceError) as caught:
        lose(retries, NO_SLOT, held_s=0.5)
    assert reason_of(caught) == ErrorReason.ERROR_REASON_QUEUE_TIMEOUT


def test_the_generations_of_a_request_survive_one_death_together():
    """Each of them loses its own worker: the second one is the last, and one worker dies once."""
    lost = set()
    first, second, third = (
        Retries(queue_timeout_s=10, resume_timeout_s=30, lost=lost) for _ in range(3)
    )
    lose(first, worker="a", died=True)
    lose(second, worker="a", died=True)
    lose(second, MOVED, worker="b", ran=True)
    with pytest.raises(ServiceError) as caught:
        lose(third, worker="c", died=True)
    assert reason_of(caught) == FAILED


def test_a_wrong_request_is_not_tried_again(retries):
    """What the worker says of it reaches the client."""
    with pytest.raises(ServiceError) as caught:
        lose(retries, ErrorReason.ERROR_REASON_INVALID_REQUEST)
    assert caught.value.detail.message == "why"


def test_nobody_else_is_there(retries):
    """When those there were have failed, it is their failure and not a lack of workers."""
    none = ServiceError(NO_WORKER, "none")
    full = ServiceError(ErrorReason.ERROR_REASON_QUEUE_FULL, "full")
    lose(retries, worker="a", ran=True)
    with pytest.raises(ServiceError) as caught:
        retries.after_rejection(none)
    assert reason_of(caught) == FAILED
    with pytest.raises(ServiceError) as caught:
        retries.after_rejection(full)
    assert caught.value is full


@pytest.mark.parametrize(
    ("lost", "reason", "passes"),
    [
        ({"died": True}, NO_WORKER, True),
        ({"reason": MOVED, "ran": True}, NO_WORKER, True),
        ({"ran": True}, NO_WORKER, False),
        ({"ran": True}, UNAVAILABLE, True),
        ({}, UNAVAILABLE, False),
        ({"reason": NO_SLOT}, NO_WORKER, False),
        ({"reason": DRAINING, "ran": True}, NO_WORKER, True),
        ({"reason": DRAINING}, NO_WORKER, False),
        ({"died": True}, ErrorReason.ERROR_REASON_QUEUE_TIMEOUT, False),
    ],
)
def test_what_ran_waits_for_what_comes_back(retries, lost, reason, passes):
    """A worker that was lost and a scheduler that is away may be back; others are not awaited."""
    lose(retries, **lost)
    rejection = ServiceError(reason, "none")
    if not passes:
        with pytest.raises(ServiceError):
            retries.after_rejection(rejection)
        return
    assert retries.after_rejection(rejection) > 0
    retries.waited_s = 30
    with pytest.raises(ServiceError):
        retries.after_rejection(rejection)
