import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from fastrun.cli.money import micros, money


@pytest.mark.parametrize(
    ("text", "amount"),
    [("0", 0), ("0.15", 150_000), ("2", 2_000_000), ("0.000001", 1), ("1000000", 10**12)],
)
def test_micros(text, amount):
    """An amount is read exactly."""
    assert micros(text, "--prompt") == amount


@pytest.mark.parametrize("text", ["", "free", "-0.01", "1000000.1", "nan", "inf", "1e99"])
def test_no_amounts(text):
    """What is none is a wrong call."""
    with pytest.raises(typer.BadParameter, match="is no amount"):
        micros(text, "--prompt")


def test_too_fine():
    """An amount that would have to be rounded is a wrong call."""
    with pytest.raises(typer.BadParameter, match="has more than 6 decimals"):
        micros("0.0000001", "--prompt")


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0.00"),
        (1, "0.000001"),
        (150_000, "0.15"),
        (1_500_000, "1.50"),
        (9 * 10**18 + 1, "9000000000000.000001"),
    ],
)
def test_money(amount, text):
    """An amount has two decimals, or as many as it takes."""
    assert money(amount) == text


@given(st.integers(0, 10**12))
def test_same_again(amount):
    """What is shown is read as the same amount."""
    assert micros(money(amount), "--prompt") == amount
