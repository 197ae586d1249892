"""When a failed generation is tried again."""

import pytest

from edge.retries import AttemptError, Retries
from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason

FAILED = ErrorReason.ERROR_REASON_ENGINE_FAILED


def failure(reason=FAILED, *, died=False):
    return AttemptError(ServiceError(reason, "why"), died=died)


def reason_of(caught):
    return caught.value.detail.reason


def test_refusals_count_against_nobody():
    """A refused lease excludes no worker, waits ever longer, and goes to the head."""
    retries = Retries(queue_timeout_s=10)
    assert not retries.front
    pauses = [
        retries.after_attempt(failure(ErrorReason.ERROR_REASON_NO_SLOT), "w", 0.001)
        for _ in range(10)
    ]
    assert pauses[:3] == [0.01, 0.02, 0.04]
    assert max(pauses) == 0.25
    assert retries.excluded == ()
    assert retries.front


def test_refusals_end_with_the_queue_time():
    """Being refused counts as waiting; its end is a full queue's end."""
    retries = Retries(queue_timeout_s=1)
    retries.waited_s = 0.99
    with pytest.raises(ServiceError) as caught:
        retries.after_attempt(failure(ErrorReason.ERROR_REASON_LEASE_REFUSED), "w", 0.001)
    assert reason_of(caught) == ErrorReason.ERROR_REASON_QUEUE_TIMEOUT


def test_two_other_workers():
    """A failure excludes its worker; the third is the last."""
    retries = Retries(queue_timeout_s=10)
    assert retries.after_attempt(failure(), "a", 1) == 0
    assert retries.after_attempt(failure(), "b", 1) == 0
    assert retries.excluded == ("a", "b")
    with pytest.raises(ServiceError) as caught:
        retries.after_attempt(failure(), "c", 1)
    assert reason_of(caught) == FAILED


def test_one_death():
    """A request on which a second worker dies is not tried again."""
    retries = Retries(queue_timeout_s=10)
    retries.after_attempt(failure(died=True), "a", 1)
    with pytest.raises(ServiceError) as caught:
        retries.after_attempt(failure(died=True), "b", 1)
    assert reason_of(caught) == FAILED


def test_a_wrong_request_is_not_tried_again():
    """What the worker says of it reaches the client."""
    retries = Retries(queue_timeout_s=10)
    with pytest.raises(ServiceError) as caught:
        retries.after_attempt(failure(ErrorReason.ERROR_REASON_INVALID_REQUEST), "a", 1)
    assert caught.value.detail.message == "why"


def test_nobody_else_is_there():
    """When those there were have failed, it is their failure and not a lack of workers."""
    retries = Retries(queue_timeout_s=10)
    none = ServiceError(ErrorReason.ERROR_REASON_NO_WORKER, "none")
    full = ServiceError(ErrorReason.ERROR_REASON_QUEUE_FULL, "full")
    assert retries.after_rejection(none) is none
    retries.after_attempt(failure(), "a", 1)
    assert retries.after_rejection(none).detail.reason == FAILED
    assert retries.after_rejection(full) is full
