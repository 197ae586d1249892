from dataclasses import replace

import pytest

from auth_service import prices
from auth_service.errors import InvalidFieldError
from auth_service.prices import MOST_MICROS, Price

PRICE = Price("org/model-7b", 150_000, 75_000, 600_000)


def test_prices():
    """Prices are whole numbers from 0 on: a model may be free."""
    for price in (PRICE, Price("m", 0, 0, 0), Price("m", MOST_MICROS, MOST_MICROS, MOST_MICROS)):
        assert prices.checked(price) == price


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""),
        ("model", "a\nb"),
        ("model", "x" * 1001),
        ("prompt_micros", -1),
        ("cached_micros", MOST_MICROS + 1),
        ("completion_micros", 2**63 - 1),
    ],
)
def test_bad_prices(field, value):
    """A price below 0, an absurd one and one of no model are refused, with the field."""
    with pytest.raises(InvalidFieldError, match=f"{field} must be"):
        prices.checked(replace(PRICE, **{field: value}))
