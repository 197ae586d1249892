"""Months, and what was used in them."""

from datetime import UTC, datetime

import pytest

from scheduler.months import Calendar, MonthTally


class Clock:
    """Stands at a date until it is set."""

    def __init__(self, *date):
        self.set(*date)

    def set(self, *date):
        self.now = datetime(*date, tzinfo=UTC).timestamp()

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    ("date", "days"),
    [((2026, 2, 1), 28), ((2028, 2, 1), 29), ((2026, 12, 1), 31), ((2026, 11, 30), 1)],
)
def test_months_end(date, days):
    """A month ends when the next one begins, in UTC."""
    assert Calendar(Clock(*date)).ends_in_s() == days * 86400.0


def test_used():
    """The larger of what was recorded, and of what was recorded first with all settled since."""
    month = MonthTally(Calendar(Clock(2026, 11, 15)))
    month.report(100)
    assert month.used() == 100
    month.settle(30)
    assert month.used() == 130
    month.report(120)
    assert month.used() == 130
    month.report(150)
    assert month.used() == 150
    month.report(90)
    assert month.used() == 130


def test_a_new_month():
    """A new month begins with nothing, also while an edge still tells of the old one."""
    clock = Clock(2026, 11, 30, 23, 59)
    month = MonthTally(Calendar(clock))
    month.report(1000)
    month.settle(50)
    clock.set(2026, 12, 1, 0, 0, 5)
    assert month.used() == 0
    month.report(1050)
    assert month.used() == 1050
    month.settle(7)
    month.report(3)
    assert month.used() == 10
