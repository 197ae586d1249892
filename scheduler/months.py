"""How much was used in a month: what auth_service has recorded, and what it cannot know yet."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

# An edge that was told just before a month ended may say so just after.
SETTLING_S = 3600.0


class Calendar:
    """The month that it is now, in UTC."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        """Begin.

        Args:
            wall_clock: seconds since 1970.
        """
        self._wall_clock = wall_clock
        self._began_at = 0.0
        self._ends_at = 0.0

    @property
    def began_at(self) -> float:
        """When this month began, seconds since 1970; tells months apart."""
        now = self._wall_clock()
        # Each request asks several times, and the month seldom turns.
        if not self._began_at <= now < self._ends_at:
            self._turn(now)
        return self._began_at

    def ends_in_s(self) -> float:
        """Return how long this month lasts."""
        now = self._wall_clock()
        self._turn(now)
        return self._ends_at - now

    def is_young(self) -> bool:
        """Tell whether figures of the month before may still be about."""
        return self._wall_clock() - self.began_at < SETTLING_S

    def _turn(self, now: float) -> None:
        if self._began_at <= now < self._ends_at:
            return
        first = datetime.fromtimestamp(now, UTC).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        self._began_at = first.timestamp()
        self._ends_at = (first + timedelta(days=32)).replace(day=1).timestamp()


class MonthTally:
    """What one account or key has used in the month.

    It is the larger of what edges say was recorded, and what they said first with all that was
    settled here since: records come late, and not at all while Postgres is away.
    """

    __slots__ = ("_began_at", "_calendar", "_first", "_latest", "_settled")

    def __init__(self, calendar: Calendar) -> None:
        self._calendar = calendar
        self._began_at = 0.0
        self._first: int | None = None
        self._latest = 0
        self._settled = 0

    def used(self) -> int:
        """Return the tokens used in this month."""
        self._turn()
        return max(self._latest, (self._first or 0) + self._settled)

    def report(self, tokens: int) -> None:
        """Take note of what was recorded in the month, as an edge was told."""
        self._turn()
        if self._first is None or (tokens < self._first and self._calendar.is_young()):
            self._first = tokens
        self._latest = tokens

    def settle(self, tokens: int) -> None:
        """Add what a worker says that a request used; before the first report nobody counts it."""
        if self._first is not None:
            self._turn()
            self._settled += tokens

    def _turn(self) -> None:
        if self._began_at != self._calendar.began_at:
            self._began_at = self._calendar.began_at
            self._first, self._latest, self._settled = None, 0, 0
