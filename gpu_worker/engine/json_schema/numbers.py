"""Bounds of numbers, moved inwards to what engines compute with: 64-bit floats of limited size.

A bound moved inwards allows less than was asked, and nothing else.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from typing import Any, Final

from gpu_worker.engine.grammar import GrammarError

# Up to here engines know bounds; the first is the greatest float below 2**63.
INTEGER_LIMIT: Final = (1 << 63) - 1024
NUMBER_LIMIT: Final = 10**18
# The automaton of a number that is a multiple of n has n states, and that of a multiple of several
# numbers as many as their least common multiple: 1,000,003 took seconds and 300 MB.
MAX_MULTIPLE = 10_000
MAX_STEPS = 100  # different values of "multipleOf" in one schema
_LEAST_STEP: Final = Decimal("1e-9")
_LEAST_SHARE: Final = Decimal("1e-12")
# Numbers that are not whole the library reads exactly up to 15 digits, and compiles up to these
# places.
_DIGITS: Final = 15
_PLACES: Final = 20
_WORD: Final = 1 << 32  # in which the library multiplies two values of "multipleOf"

Number = int | float


def bounds(schema: Mapping[str, Any]) -> dict[str, Number]:
    """Return the bounds of a schema.

    Raises:
        GrammarError: a value is not a number.
    """
    is_whole = "number" not in _types(schema)
    limit = INTEGER_LIMIT if is_whole else NUMBER_LIMIT
    found: dict[str, Number] = {}
    for side, toward in (("inimum", math.inf), ("aximum", -math.inf)):
        inclusive, exclusive = f"m{side}", f"exclusiveM{side}"
        bound, beyond = schema.get(inclusive), schema.get(exclusive)
        if beyond is True:  # before draft 6 a flag
            bound, beyond = None, bound
        for name, value in ((inclusive, bound), (exclusive, beyond)):
            if value is not None and value is not False:
                exact = Decimal(str(number(value, name)))
                found[name] = _inwards(exact, toward, limit)
        if exclusive in found and not is_whole:
            _include(found, inclusive, exclusive, toward)
    return found


def number(value: Any, keyword: str) -> Number:
    """Return a value that has to be a finite number.

    Raises:
        GrammarError: it is not.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not math.isfinite(value)):
        raise GrammarError(f'the "{keyword}" of a JSON Schema has to be a number')
    return value  # type: ignore[no-any-return] # checked above


def check_exact(value: Any) -> None:
    """Refuse a value of "const" or "enum" with a number that engines do not read exactly.

    Raises:
        GrammarError: with the number.
    """
    if isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            check_exact(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number(value, "const")
        if abs(value) > NUMBER_LIMIT or not _is_read_exactly(value):
            raise GrammarError(
                f"the JSON Schema asks for the number {str(value)[:40]}, which is too long to be "
                "enforced: make it a string"
            )


def check_steps(steps: Sequence[Number], *, repeated: bool) -> None:
    """Refuse values of "multipleOf" that take too much memory, or overflow when they meet.

    Args:
        steps: all of one schema.
        repeated: one may meet itself, as by a reference.

    Raises:
        GrammarError: with what is allowed.
    """
    counts = Counter(steps)
    exact = [Fraction(str(step)) for step in counts]
    if len(exact) > MAX_STEPS or math.lcm(*map(_digits, exact)) > MAX_MULTIPLE:
        raise GrammarError(
            'the JSON Schema uses "multipleOf" with a large value: the digits of all of them may '
            f"have a least common multiple of {MAX_MULTIPLE}"
        )
    twice = [Fraction(str(step)) for step, count in counts.items() if repeated or count > 1]
    if len(exact + twice) > 1 and _greatest_product(exact + twice) >= _WORD:
        raise GrammarError(
            'the JSON Schema uses values of "multipleOf" of which one is too large for another'
        )


def _is_read_exactly(value: Number) -> bool:
    if value == int(value):
        return float(value) == value
    _, digits, exponent = Decimal(str(value)).as_tuple()
    return len(digits) <= _DIGITS and isinstance(exponent, int) and exponent >= -_PLACES


def _types(schema: Mapping[str, Any]) -> Iterable[str]:
    types = schema.get("type", "number")
    return [types] if isinstance(types, str) else types


def _include(found: dict[str, Number], inclusive: str, exclusive: str, toward: float) -> None:
    """Say "exclusiveMinimum" 0 as "minimum" 0.000000001, and all others like it.

    The library allows a whole number itself that is excluded, where the other bound is less than 1
    from it.
    """
    bound = Decimal(str(found[exclusive]))
    if abs(bound) >= NUMBER_LIMIT or bound != int(bound):
        return
    step = max(_LEAST_STEP, abs(bound) * _LEAST_SHARE)
    included = _inwards(bound + step.copy_sign(Decimal(toward)), toward, NUMBER_LIMIT)
    del found[exclusive]
    within = max if toward > 0 else min
    found[inclusive] = within(included, found.get(inclusive, included))


def _inwards(bound: Decimal, toward: float, limit: int) -> Number:
    """Move a bound to a number that the library reads exactly, and that is not too large.

    It is left where that would be outwards.
    """
    clamped = min(bound, Decimal(limit)) if toward < 0 else max(bound, Decimal(-limit))
    if abs(clamped) > limit:
        return int(clamped)
    if clamped == int(clamped):
        near = float(clamped)
        is_inside = near >= clamped if toward > 0 else near <= clamped
        return int(near if is_inside else math.nextafter(near, toward))
    rounding = ROUND_CEILING if toward > 0 else ROUND_FLOOR
    with localcontext(prec=_PLACES * 2, rounding=rounding):
        short = clamped.quantize(Decimal(10) ** -_PLACES)
    with localcontext(prec=_DIGITS, rounding=rounding):
        return float(+short)


def _digits(step: Fraction) -> int:
    """Return the digits of a number, without the zeros that only shift the point."""
    shifted = step
    while shifted.denominator > 1:
        shifted *= 10
    return int(str(shifted.numerator).rstrip("0"))


def _greatest_product(steps: Sequence[Fraction]) -> int:
    """Return the greatest product of one and the least common multiple of the others, as integers.

    They are scaled by the power of ten that makes integers of all.
    """
    scale = 1
    for step in steps:
        while (step * scale).denominator > 1:
            scale *= 10
    whole = [int(step * scale) for step in steps]
    return max(
        each * math.lcm(*whole[:index], *whole[index + 1 :]) for index, each in enumerate(whole)
    )
