"""Whether a worker process has failed so often in a row that others get its requests for a while.

What counts as a failure is its own fault only: a connection lost with requests on it, an internal
error, no first token in time. Refusals, bad requests and clients that leave say nothing about it.
"""

import itertools
import math
from dataclasses import dataclass

REMEMBERED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When a breaker opens, and for how long."""

    failures: int = 5
    """In a row, without a success between."""
    open_s: float = 10.0
    """After so many seconds one request is let through to try."""


class Breaker:
    """The breaker of one worker process; times are monotonic seconds.

    A request can seem to have ended well before its edge says that it failed: what is known of a
    lease counts once, where it first came, and a failure is the last word on it.
    """

    def __init__(self, policy: BreakerPolicy) -> None:
        self._policy = policy
        self._remembered = max(REMEMBERED, policy.failures)
        self._numbers = itertools.count()
        # Oldest first: lease ids, and whether it failed.
        self._outcomes: dict[str, bool] = {}
        self._trial: str | None = None
        self.opens_until: float | None = None
        """When the next request may try it; None while it is closed."""

    def passes(self, now: float) -> bool:
        """Tell whether a request may go to the worker as to any other."""
        if self.opens_until is None:
            return True
        return self._trial is None and self.opens_until <= now

    @property
    def reopens_at(self) -> float:
        """When passes() will change by time alone; infinity if it will not."""
        if self.opens_until is None or self._trial is not None:
            return math.inf
        return self.opens_until

    def granted(self, lease_id: str) -> None:
        """Note a request that goes to the worker; unless it is closed, it is the only one."""
        if self.opens_until is not None:
            self._trial = lease_id

    def succeeded(self, lease_id: str) -> None:
        """Note a request that the worker has answered."""
        if self._outcomes.get(lease_id):
            return
        self._record(lease_id, failed=False)
        self._trial = None
        self.opens_until = None

    def failed(self, lease_id: str, now: float) -> None:
        """Note a request that the worker has failed; the id is empty when it is not known."""
        self._record(lease_id or f"#{next(self._numbers)}", failed=True)
        if self.opens_until is not None:
            # Others that began before it opened may still fail: that does not prolong it.
            if self.opens_until <= now:
                self._open(now)
        elif self._in_a_row() >= self._policy.failures:
            self._open(now)

    def ended(self, lease_id: str) -> None:
        """Note that a lease is over: if it was to try the worker and told nothing, another may."""
        if lease_id == self._trial:
            self._trial = None

    def _open(self, now: float) -> None:
        self._trial = None
        self.opens_until = now + self._policy.open_s

    def _record(self, lease_id: str, *, failed: bool) -> None:
        self._outcomes[lease_id] = failed
        if len(self._outcomes) > self._remembered:
            del self._outcomes[next(iter(self._outcomes))]

    def _in_a_row(self) -> int:
        return sum(1 for _ in itertools.takewhile(bool, reversed(self._outcomes.values())))
