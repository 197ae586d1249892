"""Money as operators give and read it: the services count in millionths of the currency's unit."""

from decimal import Decimal, InvalidOperation

import typer

_DECIMALS = 6
_MOST = 1_000_000


def micros(text: str, option: str) -> int:
    """Read an amount such as `0.15` exactly.

    Raises:
        BadParameter: it is none, or finer than a millionth, or out of range.
    """
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or not 0 <= amount <= _MOST:
        raise typer.BadParameter(
            f"{text!r} is no amount from 0 to {_MOST}, such as 0.15", param_hint=option
        )
    scaled = amount.scaleb(_DECIMALS)
    if scaled != scaled.to_integral_value():
        raise typer.BadParameter(f"{text!r} has more than {_DECIMALS} decimals", param_hint=option)
    return int(scaled)


def money(amount_micros: int) -> str:
    """Write an amount with two decimals, or as many more as it needs."""
    whole, decimals = f"{Decimal(amount_micros).scaleb(-_DECIMALS):.6f}".split(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"
