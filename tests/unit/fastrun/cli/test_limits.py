import pytest
import typer

from fastrun.cli import limits
from fastrun.v1.auth_pb2 import Limits

BEFORE = Limits(requests_per_minute=60, tokens_per_month=1000)


def test_changed():
    """Limits that are not given stay as they are, and `none` takes one away."""
    changes = limits.given(
        requests_per_minute="none", tokens_per_minute=None, concurrent_requests="4"
    )

    assert limits.changed(BEFORE, changes) == Limits(concurrent_requests=4, tokens_per_month=1000)


@pytest.mark.parametrize(
    "text", ["0", "-1", "1.5", "", "many", "10_0", "²", "1" + "0" * 15 + "1", "9" * 5000]
)
def test_no_limits(text):
    """What is neither a number that can be a limit nor `none` is a wrong call."""
    with pytest.raises(typer.BadParameter, match=r"neither a whole number from 1 to .* nor none"):
        limits.given(tokens_per_minute=text)


def test_fields():
    """As JSON all limits are there, null where there is none."""
    assert limits.fields(BEFORE) == {
        "requests_per_minute": 60,
        "tokens_per_minute": None,
        "concurrent_requests": None,
        "tokens_per_month": 1000,
    }


def test_text():
    """In a list only those are there that there are."""
    assert limits.text(BEFORE) == "60 requests per minute, 1000 tokens per month"
    assert limits.text(Limits()) == "-"
