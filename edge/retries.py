"""When a generation that failed on one worker is tried again, and where.

Only while its client has seen nothing of it. A worker that refuses a lease costs a new place at the
head of the queue; one that fails is left out, twice at most; and a request on which a worker died
is tried once more at most, so that one that kills workers does not walk through the fleet.
"""

from edge.errors import AT_CAPACITY, REFUSED
from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason

MOST_OTHER_WORKERS = 2
MOST_DEATHS_SURVIVED = 1
REFUSAL_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.25

REFUSALS = frozenset(
    {
        ErrorReason.ERROR_REASON_NO_SLOT,
        ErrorReason.ERROR_REASON_LEASE_REFUSED,
        ErrorReason.ERROR_REASON_DRAINING,
    }
)


class AttemptError(Exception):
    """One try on one worker failed.

    Attributes:
        error: why.
        died: the worker died, or was lost, while it may have run the request.
    """

    def __init__(self, error: ServiceError, *, died: bool = False) -> None:
        super().__init__(error)
        self.error = error
        self.died = died


class Retries:
    """What has happened to one generation so far, and what follows from it."""

    def __init__(self, *, queue_timeout_s: float) -> None:
        self.queue_timeout_s = queue_timeout_s
        self.waited_s = 0.0
        """Time without a worker, in the queue or being refused."""
        self.excluded: tuple[str, ...] = ()
        self.attempts = 0
        self._failures = 0
        self._deaths = 0
        self._refusals = 0

    @property
    def front(self) -> bool:
        """Whether it had its turn already, and so goes to the head of the queue."""
        return self.attempts > 0

    def after_attempt(self, failure: AttemptError, worker_id: str, held_s: float) -> float:
        """Decide what follows a failed try.

        Args:
            failure: what happened.
            worker_id: where.
            held_s: how long the worker had it.

        Returns:
            Seconds to wait before the next try.

        Raises:
            ServiceError: there is no next try; this is what the client gets.
        """
        self.attempts += 1
        reason = failure.error.detail.reason
        if reason == ErrorReason.ERROR_REASON_INVALID_REQUEST:
            raise failure.error
        if reason in REFUSALS:
            return self._after_refusal(held_s)
        self.excluded = (*self.excluded, worker_id)
        self._failures += 1
        self._deaths += failure.died
        if self._failures > MOST_OTHER_WORKERS or self._deaths > MOST_DEATHS_SURVIVED:
            raise ServiceError(ErrorReason.ERROR_REASON_ENGINE_FAILED, REFUSED)
        return 0.0

    def after_rejection(self, error: ServiceError) -> ServiceError:
        """Say what the client gets when the scheduler has no further slot to give."""
        no_other = error.detail.reason == ErrorReason.ERROR_REASON_NO_WORKER
        if no_other and self._failures:
            return ServiceError(ErrorReason.ERROR_REASON_ENGINE_FAILED, REFUSED)
        return error

    def _after_refusal(self, held_s: float) -> float:
        pause_s = min(LONGEST_PAUSE_S, REFUSAL_PAUSE_S * 2.0**self._refusals)
        self._refusals += 1
        self.waited_s += held_s + pause_s
        if self.waited_s >= self.queue_timeout_s:
            raise ServiceError(ErrorReason.ERROR_REASON_QUEUE_TIMEOUT, AT_CAPACITY)
        return pause_s
