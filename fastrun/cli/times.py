"""Times as they are given to commands: how long, and until when. Pure."""

import re
from datetime import UTC, date, datetime

import typer

DAY_S = 86_400.0

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])", re.ASCII)
_YEAR_9999 = 253_370_764_800.0


def duration_s(text: str, option: str) -> float:
    """Read how long, such as `90d`, `12h`, `30m`, `45s` or `0`, in seconds.

    Raises:
        BadParameter: it says nothing of the kind.
    """
    if text == "0":
        return 0.0
    found = _DURATION.fullmatch(text)
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is no duration: give a number and s, m, h or d, such as 90d",
            param_hint=option,
        )
    return float(found[1]) * _UNITS_S[found[2]]


def day_of(text: str) -> date:
    """Read a day, as it is given to --from and --to.

    Raises:
        BadParameter: it is none.
    """
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no day: give one such as 2027-01-31") from error


def moment_of(text: str, now: float, option: str) -> float:
    """Read until when, in seconds since 1970.

    Args:
        text: a duration from now on, a day, which means its beginning in UTC, or a time, which is
            in UTC unless it says otherwise.
        now: in seconds since 1970.
        option: where it was given.

    Raises:
        BadParameter: it is none of these, not in the future, or too far in it.
    """
    is_duration = _DURATION.fullmatch(text)
    moment = now + duration_s(text, option) if is_duration else _parsed(text, option)
    if moment <= now:
        raise typer.BadParameter(f"{text!r} is not in the future", param_hint=option)
    if moment >= _YEAR_9999:
        raise typer.BadParameter(f"{text!r} is too far in the future", param_hint=option)
    return moment


def _parsed(text: str, option: str) -> float:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is no time: give a duration such as 90d, a day such as 2027-01-31, "
            "or a time such as 2027-01-31T12:00:00Z",
            param_hint=option,
        ) from error
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
