from datetime import date

import pytest
import typer

from fastrun.cli.times import day_of, duration_s, moment_of

NOW = 1_000_000_000.0  # 2001-09-09T01:46:40Z


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("45s", 45), ("30m", 1800), ("12h", 43_200), ("90d", 7_776_000), ("1.5h", 5400)],
)
def test_durations(text, seconds):
    """A duration is a number and a unit."""
    assert duration_s(text, "--overlap") == seconds


@pytest.mark.parametrize(
    "text", ["", "1", "d", "1 d", "-1d", "1w", "1d12h", "\u0661d", "infd", "1e9d"]
)
def test_no_durations(text):
    """Anything else is a wrong call."""
    with pytest.raises(typer.BadParameter, match="is no duration"):
        duration_s(text, "--overlap")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90d", NOW + 7_776_000),
        ("2001-09-10", 1_000_080_000),
        ("2001-09-10T00:00", 1_000_080_000),
        ("2001-09-10T00:00:00Z", 1_000_080_000),
        ("2001-09-10T02:00:00+02:00", 1_000_080_000),
    ],
)
def test_moments(text, moment):
    """A moment is given from now on, as a day, or as a time; in UTC unless it says otherwise."""
    assert moment_of(text, NOW, "--expires") == moment


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tomorrow", "is no time"),
        ("2001-13-01", "is no time"),
        ("2001-09-09", "is not in the future"),
        ("0d", "is not in the future"),
        ("9" * 400 + "d", "is too far in the future"),
        ("9999-12-31", "is too far in the future"),
    ],
)
def test_no_moments(text, why):
    """What is none, has been, or is too far off, is a wrong call."""
    with pytest.raises(typer.BadParameter, match=why):
        moment_of(text, NOW, "--expires")


def test_days():
    """A day is written as ISO 8601 has it."""
    assert day_of("2026-11-30") == date(2026, 11, 30)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11", "2026-11-31", "30.11.2026"])
def test_no_days(text):
    """Anything else is a wrong call, which says what a day looks like."""
    with pytest.raises(typer.BadParameter, match="is no day: give one such as 2027-01-31"):
        day_of(text)
