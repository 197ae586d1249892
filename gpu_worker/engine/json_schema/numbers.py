"""Bounds of numbers, moved inwards to what engines compute with: 64-bit floats of limited size.

A bound moved inwards allows less than was asked, and nothing else.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
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
_WORD: Final = 1 << 32  # in which the library multiplies two values of "multipleOf"

Number = int | float


def bounds(schema: Mapping[str, Any]) -> dict[str, Number]:
    """Return the bounds of a schema.

    Raises:
        GrammarError: a value is not a number.
    """
    limit = NUMBER_LIMIT if "number" in _types(schema) else INTEGER_LIMIT
    found: dict[str, Number] = {}
    for side, toward in (("inimum", math.inf), ("aximum", -math.inf)):
        inclusive, exclusive = f"m{side}", f"exclusiveM{side}"
        bound, beyond = schema.get(inclusive), schema.get(exclusive)
        if beyond is True:  # before draft 6 a flag
            bound, beyond = None, bound
        for name, value in ((inclusive, bound), (exclusive, beyond)):
            if value is not None and value is not False:
                found[name] = _inwards(number(value, name), toward, limit)
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
    """Refuse a value of "const" or "enum" with a number that is not what a 64-bit float holds.

    Raises:
        GrammarError: with the number.
    """
    if isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            check_exact(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number(value, "const")
        if abs(value) > NUMBER_LIMIT or float(value) != value:
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
    exact = [Fraction(str(step)) for step in steps if step > 0]
    if len(set(exact)) > MAX_STEPS or math.lcm(*map(_digits, exact)) > MAX_MULTIPLE:
        raise GrammarError(
            'the JSON Schema uses "multipleOf" with a large value: the digits of all of them may '
            f"have a least common multiple of {MAX_MULTIPLE}"
        )
    meeting = exact * 2 if repeated else exact
    if len(meeting) > 1 and _greatest_product(meeting) >= _WORD:
        raise GrammarError(
            'the JSON Schema uses values of "multipleOf" of which one is too large for another'
        )


def _types(schema: Mapping[str, Any]) -> Iterable[str]:
    types = schema.get("type", "number")
    return [types] if isinstance(types, str) else types


def _inwards(value: Number, toward: float, limit: int) -> Number:
    """Move a bound to a float within the limit, or leave it where no float is that far inwards."""
    clamped = min(value, limit) if toward < 0 else max(value, -limit)
    if abs(clamped) > limit:
        return clamped
    near = float(clamped)
    if near == clamped:
        return clamped
    is_inside = near > clamped if toward > 0 else near < clamped
    return near if is_inside else math.nextafter(near, toward)


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
