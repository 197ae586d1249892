"""When a generation that a worker has lost is tried again, where, and as what.

A worker that refuses a lease costs a new place at the head of the queue, and one that stops before
the end as little; one that fails is left out, twice at most; and a request on which a worker died
is tried once more at most, all its generations together, so that one that kills workers does not
walk through the fleet. Whether it begins anew or goes on makes no difference to that.
"""

from collections.abc import MutableSet

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
        ran: the worker had accepted it.
        died: the worker died, or was lost, while it may have run the request.
        is_fault: it is the worker's, and nobody else tells the scheduler.
    """

    def __init__(
        self, error: ServiceError, *, ran: bool = False, died: bool = False, is_fault: bool = False
    ) -> None:
        super().__init__(error)
        self.error = error
        self.ran = ran
        self.died = died
        self.is_fault = is_fault


class Retries:
    """What has happened to one generation so far, and what follows from it."""

    def __init__(
        self, *, queue_timeout_s: float, resume_timeout_s: float, lost: MutableSet[str]
    ) -> None:
        """Begin.

        Args:
            queue_timeout_s: how long it may be without a worker, in all.
            resume_timeout_s: the same for one that ran, each time.
            lost: instances that died with any generation of the request.
        """
        self._lost = lost
        self._queue_timeout_s = queue_timeout_s
        self._resume_timeout_s = resume_timeout_s
        self.waited_s = 0.0
        """Time without a worker, in the queue or being refused; since it last ran."""
        self.excluded: tuple[str, ...] = ()
        """Ids of workers that failed it, and of instances that are gone."""
        self.resumes = False
        """It ran, and goes ahead of all that has not."""
        self.front = False
        """It had its turn already, and goes to the head of the queue."""
        self._failures = 0
        self._deaths = 0
        self._pauses = 0
        self._may_come_back = False

    @property
    def timeout_s(self) -> float:
        """How long it may be without a worker."""
        return self._resume_timeout_s if self.resumes else self._queue_timeout_s

    def after_attempt(
        self, failure: AttemptError, worker_id: str, instance_id: str, held_s: float
    ) -> float:
        """Decide what follows a failed try.

        Args:
            failure: what happened.
            worker_id: where.
            instance_id: of that worker.
            held_s: how long the worker had it.

        Returns:
            Seconds to wait before the next try.

        Raises:
            ServiceError: there is no next try; this is what the client gets.
        """
        self.front = True
        if failure.ran or failure.died:
            self.resumes = True
            self.waited_s = held_s = 0.0
        reason = failure.error.detail.reason
        if reason == ErrorReason.ERROR_REASON_INVALID_REQUEST:
            raise failure.error
        if reason == ErrorReason.ERROR_REASON_MOVED:
            self._may_come_back = True
            return self._pause_s()
        if reason in REFUSALS:
            # A worker that stops may come back as a new process, as after MOVED.
            self._may_come_back |= reason == ErrorReason.ERROR_REASON_DRAINING
            return self._wait(held_s, _too_late())
        self._may_come_back = failure.died
        # A worker that died may come back as a new process; one that lives would fail it again.
        self.excluded = (*self.excluded, instance_id if failure.died else worker_id)
        self._failures += 1
        if failure.died:
            self._deaths += 1
            self._lost.add(instance_id)
        deaths = max(self._deaths, len(self._lost))
        if self._failures > MOST_OTHER_WORKERS or deaths > MOST_DEATHS_SURVIVED:
            raise ServiceError(ErrorReason.ERROR_REASON_ENGINE_FAILED, REFUSED)
        return 0.0

    def after_rejection(self, error: ServiceError) -> float:
        """Decide what follows when the scheduler has no slot to give.

        Returns:
            Seconds to wait before it is asked again.

        Raises:
            ServiceError: it is not; this is what the client gets.
        """
        reason = error.detail.reason
        passes = reason == ErrorReason.ERROR_REASON_UNAVAILABLE
        if reason == ErrorReason.ERROR_REASON_NO_WORKER:
            passes = self._may_come_back
            if self._failures:
                error = ServiceError(ErrorReason.ERROR_REASON_ENGINE_FAILED, REFUSED)
        if not (self.resumes and passes):
            raise error
        return self._wait(0.0, error)

    def _wait(self, held_s: float, error: ServiceError) -> float:
        pause_s = self._pause_s()
        self.waited_s += held_s + pause_s
        if self.waited_s >= self.timeout_s:
            raise error
        return pause_s

    def _pause_s(self) -> float:
        pause_s = min(LONGEST_PAUSE_S, REFUSAL_PAUSE_S * 2.0**self._pauses)
        self._pauses += 1
        return pause_s


def _too_late() -> ServiceError:
    return ServiceError(ErrorReason.ERROR_REASON_QUEUE_TIMEOUT, AT_CAPACITY)
