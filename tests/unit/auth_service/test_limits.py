import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth_service import limits
from auth_service.errors import InvalidFieldError
from auth_service.limits import MOST, NO_LIMITS, Limits

VALUES = st.none() | st.integers(1, MOST)


@given(st.builds(Limits, VALUES, VALUES, VALUES, VALUES))
def test_stored(each):
    """Limits are read as they were stored."""
    assert limits.of_json(limits.to_json(limits.checked(each))) == each


def test_without_limits():
    """What is unlimited is not stored, so that a row of before limits has none."""
    assert limits.to_json(NO_LIMITS) == "{}"


def test_newer():
    """A limit that only a newer code knows does not stop this one."""
    assert limits.of_json('{"requests_per_day": 5, "requests_per_minute": 3}') == Limits(3)


@pytest.mark.parametrize("value", [0, -1, MOST + 1])
@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(Limits)])
def test_refused(name, value):
    """A limit of nothing, and one that is none, are refused by their name."""
    with pytest.raises(InvalidFieldError, match=f"{name} must be from 1"):
        limits.checked(Limits(**{name: value}))
