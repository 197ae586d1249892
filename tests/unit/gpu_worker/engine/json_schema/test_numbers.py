"""Bounds are moved inwards to floats, and multiples are limited."""

import math

import pytest

from gpu_worker.engine.grammar import GrammarError
from gpu_worker.engine.json_schema.numbers import (
    INTEGER_LIMIT,
    NUMBER_LIMIT,
    bounds,
    check_exact,
    check_steps,
)


@pytest.mark.parametrize("value", [0, -3, 2.5, 1e-9, 123456789.01234, 2**53, 10**18, -(2**59)])
def test_exact_bounds_stay(value):
    """What the library reads exactly is not touched."""
    both = {"minimum": value, "maximum": value}
    assert bounds(both) == both


@pytest.mark.parametrize("types", ["integer", ["integer", "null"]])
def test_excluded_whole_numbers(types):
    """Among whole numbers an excluded bound stays one."""
    schema = {"type": types, "exclusiveMinimum": 0, "exclusiveMaximum": 9}
    assert bounds(schema) == {"exclusiveMinimum": 0, "exclusiveMaximum": 9}


@pytest.mark.parametrize(
    ("bound", "least", "most"),
    [
        (0, 1e-9, -1e-9),
        (1, 1.000000001, 0.999999999),
        (-3.0, -2.999999999, -3.000000001),
        (10**12, 10**12 + 1, 10**12 - 1),
        (2**31 - 1, 2147483647.00215, 2147483646.99785),
    ],
)
def test_excluded_numbers(bound, least, most):
    """The library would allow a whole number that is excluded: the next but a few is a bound."""
    assert bounds({"exclusiveMinimum": bound}) == {"minimum": least}
    assert bounds({"exclusiveMaximum": bound, "type": "number"}) == {"maximum": most}
    assert bounds({"exclusiveMinimum": bound, "minimum": bound + 5}) == {"minimum": bound + 5}
    assert bounds({"exclusiveMinimum": bound, "minimum": bound - 5}) == {"minimum": least}


def test_excluded_decimals():
    """Of others it excludes what it should."""
    assert bounds({"exclusiveMinimum": 0.5}) == {"exclusiveMinimum": 0.5}


@pytest.mark.parametrize("value", [0.30000000000000004, 1 / 3, math.pi * 1e5, 1e-25, 1.5e-300])
def test_long_decimals_move_inwards(value: float):
    """What has more than 15 digits or 20 places becomes a bit less than was asked."""
    found = bounds({"minimum": value, "maximum": value})
    assert found["minimum"] > value > found["maximum"]
    assert found["minimum"] - found["maximum"] < 1e-9
    assert all(len(repr(each)) <= 20 for each in found.values())


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 2**60 - 1, 123456789012345678])
def test_other_bounds_move_inwards(value: int):
    """What no float holds becomes the next float that allows less."""
    found = bounds({"type": "integer", "minimum": value, "maximum": value})
    assert found["minimum"] > value > found["maximum"]
    assert math.nextafter(found["minimum"], -math.inf) < value
    assert math.nextafter(found["maximum"], math.inf) > value


@pytest.mark.parametrize(
    ("types", "limit"),
    [("integer", INTEGER_LIMIT), (["integer", "null"], INTEGER_LIMIT), ("number", NUMBER_LIMIT)],
)
def test_wide_bounds_are_limited(types, limit: int):
    """A bound beyond what engines compute with allows all that they can."""
    for most in (2**63, 10**30, 10**400):
        found = bounds({"type": types, "minimum": -most, "maximum": most})
        assert found == {"minimum": -limit, "maximum": limit}


def test_out_of_reach():
    """A bound that leaves nothing within reach is kept, for the library to refuse."""
    assert bounds({"minimum": 10**30}) == {"minimum": 10**30}


@pytest.mark.parametrize(
    "value", [0, 1.5, -(2**53), 3.14159265358979, [True, {"a": 0.1}], "9" * 400, None]
)
def test_exact_values(value):
    """What is read exactly can be asked for."""
    check_exact(value)


@pytest.mark.parametrize("value", [2**53 + 1, -(2**63), [{"a": [10**19]}], math.inf, 1 / 3])
def test_inexact_values(value):
    """What engines would round is refused."""
    with pytest.raises(GrammarError):
        check_exact(value)


@pytest.mark.parametrize("step", [0.1, 0.01, 0.25, 5, 100, 1_000_000, 7, 1e-9])
def test_usual_steps(step: float):
    """Zeros do not count."""
    check_steps([step], repeated=False)


@pytest.mark.parametrize(
    ("steps", "repeated"),
    [
        ([1_000_003], False),
        ([9973, 0.9967], False),
        ([1.5e-300, 0.1234567], False),
        ([1_000_000, 1_000_000], False),
        ([3, 1e-10], False),
        ([1_000_000], True),
        ([*range(1, 8), *(10**at for at in range(100))], False),
    ],
)
def test_costly_steps(steps, repeated):
    """What would take much memory, or overflow where two meet, is refused."""
    with pytest.raises(GrammarError, match="multipleOf"):
        check_steps(steps, repeated=repeated)
