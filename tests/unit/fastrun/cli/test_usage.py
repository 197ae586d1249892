from datetime import date

import pytest
import typer
from typer.testing import CliRunner

from fastrun.cli.app import make_app
from fastrun.cli.usage import days

TODAY = date(2026, 11, 29)


@pytest.mark.parametrize(
    ("first", "last", "meant"),
    [
        (None, None, ("2026-11-01", "2026-11-29")),
        (None, date(2026, 2, 28), ("2026-02-01", "2026-02-28")),
        (date(2026, 1, 15), None, ("2026-01-15", "2026-11-29")),
        (
            date(2026, 1, 15),
            date(2026, 1, 15),
            ("2026-01-15", "2026-01-15"),
        ),
    ],
)
def test_days(first, last, meant):
    """Unless told otherwise usage is that of the month so far."""
    assert days(first, last, TODAY) == meant


def test_no_days():
    """Days that end before they begin are a wrong call."""
    with pytest.raises(typer.BadParameter, match="is after --to"):
        days(date(2026, 12, 1), None, TODAY)


@pytest.mark.parametrize("arguments", [["--from", "yesterday"], ["--json", "--csv"]])
def test_wrong_calls(arguments):
    """A wrong call ends with status 2."""
    assert CliRunner().invoke(make_app("usage"), ["usage", *arguments]).exit_code == 2
