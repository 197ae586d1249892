"""Which requests may not wait, why, and when they may come back."""

from collections import deque
from collections.abc import Callable

from fastrun.v1.error_pb2 import ErrorDetail, ErrorReason
from scheduler.fleet import Fleet
from scheduler.queue import Queue
from scheduler.waiting import Waiting

RETRY_AFTER_MIN_S = 1.0
RETRY_AFTER_MAX_S = 120.0
JITTER = 0.25
NO_WORKER_RETRY_S = 5.0
RATE_WINDOW_S = 60.0
RATE_SAMPLES = 256
UNMEASURED_WAIT_S = 10.0

_AT_CAPACITY = "all backends for this model are at capacity"
_NO_WORKER = "no backend is available for this model"


class FreeingRate:
    """How fast the slots of one model become free."""

    def __init__(self) -> None:
        self._freed_at: deque[float] = deque(maxlen=RATE_SAMPLES)

    def record(self, now: float) -> None:
        """Note that a slot has become free."""
        self._freed_at.append(now)

    def wait_s(self, slots: int, now: float) -> float:
        """Estimate how long it takes until so many slots have become free.

        Returns:
            Seconds, from what was seen in the last minute; without that, one queue timeout.
        """
        while self._freed_at and now - self._freed_at[0] > RATE_WINDOW_S:
            self._freed_at.popleft()
        if not self._freed_at:
            return UNMEASURED_WAIT_S
        span = max(now - self._freed_at[0], 1.0)
        return slots * span / len(self._freed_at)


class Refusals:
    """Decides who is refused; times are monotonic seconds."""

    def __init__(
        self, fleet: Fleet, queue: Queue, *, per_slot: float, random: Callable[[], float]
    ) -> None:
        self._fleet = fleet
        self._queue = queue
        self._per_slot = per_slot
        self._random = random
        self._rates: dict[str, FreeingRate] = {}
        self.complete = False
        """Every worker that is up has had time to say Hello: what is missing now is missing."""

    def bound(self, model: str) -> int:
        """Return how many requests may wait for a model."""
        return int(self._per_slot * self._fleet.slots(model))

    def freed(self, model: str, now: float) -> None:
        """Note that a slot of a model has become free."""
        rate = self._rates.get(model)
        if rate is None:
            rate = self._rates[model] = FreeingRate()
        rate.record(now)

    def why_not_wait(
        self, waiting: Waiting, now: float, *, admitted: bool
    ) -> ErrorReason.ValueType | None:
        """Return why a request that found too few slots is refused at once; None lets it wait.

        The bound is for requests that have nothing yet. One that is admitted waits outside it with
        what is left: to refuse it would throw away what its other generations do. And so does one
        that was running, whose client has seen a part of it.

        Args:
            waiting: what it asks for.
            now: monotonic seconds.
            admitted: some of its generations get a slot at once, or wait here already.
        """
        reason = self.why_hopeless(waiting)
        if reason is None and waiting.deadline <= now:
            reason = self.why_expired(waiting)
        if reason is not None or not self._possible(waiting):
            return reason
        if admitted or waiting.resume:
            return None
        room = self._per_slot and (not self._full_for(waiting) or self.who_makes_way(waiting))
        return None if room else ErrorReason.ERROR_REASON_QUEUE_FULL

    def who_makes_way(self, waiting: Waiting) -> Waiting | None:
        """Find who is refused so that a newcomer may wait; None if nobody has to be, or will."""
        if waiting.begun or not self._full_for(waiting):
            return None
        return self._queue.line(waiting.model).who_makes_way(waiting.account_id)

    def _full_for(self, waiting: Waiting) -> bool:
        # Who comes back has stood in a queue before: a worker's refusal or a new scheduler, to
        # which the fleet comes back piece by piece, is no reason to lose the place.
        if waiting.came_back or not self.complete:
            return False
        return self._queue.line(waiting.model).requests >= self.bound(waiting.model)

    def why_hopeless(self, waiting: Waiting) -> ErrorReason.ValueType | None:
        """Return why no worker that is there can ever take a request."""
        if not self.complete or self._possible(waiting):
            return None
        if waiting.model in self._fleet.cards:
            return ErrorReason.ERROR_REASON_NO_WORKER
        return ErrorReason.ERROR_REASON_UNKNOWN_MODEL

    def why_expired(self, waiting: Waiting) -> ErrorReason.ValueType:
        """Tell a fleet that is busy from one that is not there."""
        if self._possible(waiting):
            return ErrorReason.ERROR_REASON_QUEUE_TIMEOUT
        return ErrorReason.ERROR_REASON_NO_WORKER

    def detail(self, reason: ErrorReason.ValueType, waiting: Waiting, now: float) -> ErrorDetail:
        """Put a refusal in words, with when to come back.

        That is when one more request of this account would get a slot if it waited from now on: an
        account that others keep from its turn is told less than one that is in its own way.
        """
        if reason == ErrorReason.ERROR_REASON_UNKNOWN_MODEL:
            message = f"model '{waiting.model[:200]}' does not exist"
            return ErrorDetail(reason=reason, message=message)
        if reason == ErrorReason.ERROR_REASON_NO_WORKER:
            after = self._retry_after_ms(NO_WORKER_RETRY_S)
            return ErrorDetail(reason=reason, message=_NO_WORKER, retry_after_ms=after)
        rate = self._rates.get(waiting.model) or FreeingRate()
        others = self._queue.line(waiting.model).slots_before_another(waiting.account_id)
        after = self._retry_after_ms(rate.wait_s(others + 1, now))
        return ErrorDetail(reason=reason, message=_AT_CAPACITY, retry_after_ms=after)

    def _possible(self, waiting: Waiting) -> bool:
        excluded = self._fleet.barred(waiting.excluded)
        return self._fleet.roster(waiting.model).possible(excluded)

    def _retry_after_ms(self, wait_s: float) -> int:
        """Spread a wait upwards, so that those refused together do not come back together."""
        within = min(max(wait_s, RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S / (1 + JITTER))
        return int(within * (1 + JITTER * self._random()) * 1000)
