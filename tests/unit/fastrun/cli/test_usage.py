from datetime import UTC, datetime

import pytest
import typer
from typer.testing import CliRunner

from fastrun.cli.app import make_app
from fastrun.cli.usage import days

NOW = datetime(2026, 11, 29, 23, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    ("first", "last", "meant"),
    [
        (None, None, ("2026-11-01", "2026-11-29")),
        (None, datetime(2026, 2, 28, tzinfo=UTC), ("2026-02-01", "2026-02-28")),
        (datetime(2026, 1, 15, tzinfo=UTC), None, ("2026-01-15", "2026-11-29")),
        (
            datetime(2026, 1, 15, tzinfo=UTC),
            datetime(2026, 1, 15, tzinfo=UTC),
            ("2026-01-15", "2026-01-15"),
        ),
    ],
)
def test_days(first, last, meant):
    """Unless told otherwise usage is that of the month so far."""
    assert days(first, last, NOW) == meant


def test_no_days():
    """Days that end before they begin are a wrong call."""
    with pytest.raises(typer.BadParameter, match="is after --to"):
        days(datetime(2026, 12, 1, tzinfo=UTC), None, NOW)


@pytest.mark.parametrize("arguments", [["--from", "yesterday"], ["--json", "--csv"]])
def test_wrong_calls(arguments):
    """A wrong call ends with status 2."""
    assert CliRunner().invoke(make_app("usage"), ["usage", *arguments]).exit_code == 2
