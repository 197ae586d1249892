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


@pytest.mark.parametrize("value", [0, -3, 2.5, 1e-9, 2**53, 10**18, -(2**59)])
def test_exact_bounds_stay(value):
    """What a float holds is not touched."""
    assert bounds({"minimum": value, "exclusiveMaximum": value}) == {
        "minimum": value,
        "exclusiveMaximum": value,
    }


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 2**60 - 1, 123456789012345678])
def test_other_bounds_move_inwards(value: int):
    """What no float holds becomes the next that allows less."""
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


@pytest.mark.parametrize("value", [0, 1.5, -(2**53), [True, {"a": 0.1}], "9" * 400, None])
def test_exact_values(value):
    """What a float holds can be asked for."""
    check_exact(value)


@pytest.mark.parametrize("value", [2**53 + 1, -(2**63), [{"a": [10**19]}], math.inf])
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
