"""What one account or one key uses, held against what it may."""

import math
from collections import OrderedDict
from functools import lru_cache
from operator import attrgetter

import msgspec

from fastrun.v1 import auth_pb2
from fastrun.v1.error_pb2 import ErrorDetail, ErrorReason
from scheduler.months import Calendar, MonthTally
from scheduler.windows import WINDOW_S, Window

REQUESTS, TOKENS = attrgetter("requests"), attrgetter("tokens")
"""Of a cell."""
# When one of several running requests ends, nobody knows.
CONCURRENT_RETRY_S = 1.0
# An account that has been idle for so long is forgotten; what it used in the month, auth_service
# has recorded by then.
IDLE_S = 3600.0
LOOKS_EACH_S = 1.0
MOST_METERS = 100_000


class Ceiling(msgspec.Struct, frozen=True):
    """The most that may be used; None is any amount."""

    requests: int | None = None
    """Per minute."""
    tokens: int | None = None
    """Per minute."""
    concurrent: int | None = None
    month: int | None = None
    """Tokens."""

    @classmethod
    def of(cls, limits: auth_pb2.Limits) -> "Ceiling":
        """Read what auth_service says."""
        return _ceiling(limits.SerializeToString())


UNLIMITED = Ceiling()


# Each request says them anew, and there are as many as an operator thinks of.
@lru_cache(1024)
def _ceiling(encoded: bytes) -> Ceiling:
    if not encoded:
        return UNLIMITED
    limits = auth_pb2.Limits.FromString(encoded)
    has = limits.HasField
    return Ceiling(
        requests=limits.requests_per_minute if has("requests_per_minute") else None,
        tokens=limits.tokens_per_minute if has("tokens_per_minute") else None,
        concurrent=limits.concurrent_requests if has("concurrent_requests") else None,
        month=limits.tokens_per_month if has("tokens_per_month") else None,
    )


class Reached(msgspec.Struct, frozen=True):
    """A limit that leaves no room for a request."""

    name: str
    limit: int
    opens_in_s: float

    def detail(self) -> ErrorDetail:
        """Put it in words, with when to come back."""
        return ErrorDetail(
            reason=ErrorReason.ERROR_REASON_LIMIT_REACHED,
            message=f"{self.name} limit of {self.limit} reached",
            retry_after_ms=milliseconds(self.opens_in_s),
        )


class Meter:
    """The counters of one account or key; times are monotonic seconds."""

    __slots__ = (
        "active_at",
        "calendar",
        "ceiling",
        "in_flight",
        "month",
        "reserved",
        "window",
    )

    def __init__(self, calendar: Calendar) -> None:
        self.active_at = 0.0
        self.calendar = calendar
        self.ceiling = UNLIMITED
        self.window = Window()
        self.month = MonthTally(calendar)
        self.in_flight = 0
        """Requests that wait for a slot or hold one."""
        self.reserved = 0
        """Tokens that these may use and have not told of yet."""

    def heed(self, ceiling: Ceiling, month_tokens: int | None) -> None:
        """Take note of the limits as they are now, and of what was recorded in the month.

        None: nothing new is known of that.
        """
        self.ceiling = ceiling
        if ceiling.month is not None and month_tokens is not None:
            self.month.report(month_tokens)

    def reservation(self, estimate: int) -> int:
        """Return what is set aside of the tokens per minute for a request.

        Never more than the limit: a request that is larger than that passes when nothing else was
        used in the last minute, and not never.
        """
        limit = self.ceiling.tokens
        return estimate if limit is None else min(estimate, limit)

    def reached(self, estimate: int, now: float) -> list[Reached]:
        """Find the limits that leave no room for one more request; changes no count."""
        most, window = self.ceiling, self.window
        found: list[Reached] = []
        window.lapse(now)
        if most.requests is not None and (excess := window.requests + 1 - most.requests) > 0:
            wait_s = window.opens_in_s(excess, REQUESTS, now)
            found.append(Reached("requests per minute", most.requests, wait_s))
        if most.tokens is not None:
            excess = window.tokens + max(1, self.reservation(estimate)) - most.tokens
            if excess > 0:
                wait_s = window.opens_in_s(excess, TOKENS, now)
                found.append(Reached("tokens per minute", most.tokens, wait_s))
        if most.month is not None and self.month.used() + self.reserved >= most.month:
            found.append(Reached("tokens per month", most.month, self.calendar.ends_in_s()))
        return found + self.crowded()

    def crowded(self) -> list[Reached]:
        """Find out whether as many requests run as may."""
        most = self.ceiling.concurrent
        if most is None or self.in_flight < most:
            return []
        return [Reached("concurrent requests", most, CONCURRENT_RETRY_S)]


class Meters:
    """All accounts, or all keys, that were active of late."""

    def __init__(self, calendar: Calendar) -> None:
        self._calendar = calendar
        # The one that was active longest ago comes first.
        self._meters: OrderedDict[str, Meter] = OrderedDict()
        self._looks_at = 0.0
        """When it looks again for idle ones."""

    def __len__(self) -> int:
        return len(self._meters)

    def get(self, name: str) -> Meter | None:
        """Return the meter of an account or key that was active of late."""
        return self._meters.get(name)

    def touch(self, name: str, now: float) -> Meter:
        """Return the meter of an account or key that is active now."""
        meter = self._meters.get(name)
        if meter is None:
            meter = self._meters[name] = Meter(self._calendar)
        else:
            self._meters.move_to_end(name)
        meter.active_at = now
        if now >= self._looks_at:
            self._forget(now)
        return meter

    def _forget(self, now: float) -> None:
        """Let go of the idle, a few each time; never of one whose last minute still counts."""
        for _ in range(2):
            name, meter = next(iter(self._meters.items()))
            enough_s = WINDOW_S + 1 if len(self._meters) > MOST_METERS else IDLE_S
            if now - meter.active_at <= enough_s:
                self._looks_at = now + LOOKS_EACH_S
                return
            if meter.in_flight:
                meter.active_at = now
                self._meters.move_to_end(name)
            else:
                del self._meters[name]


def milliseconds(seconds: float) -> int:
    """Round up, so that nobody comes back too early, and to what a message can hold."""
    return min(math.ceil(seconds * 1000), 2**32 - 1)
