import pytest

from fastrun.cli.doctor.clock import compare
from fastrun.cli.doctor.finding import State


@pytest.mark.parametrize("theirs_s", [100.0, 103.0, 96.0, 116.0])
def test_agrees(theirs_s):
    """A clock agrees that may have said so at any moment of the answer, give or take some seconds."""
    assert compare("Postgres", theirs_s, before_s=100, after_s=112).state is State.OK


@pytest.mark.parametrize(
    ("theirs_s", "says"), [(40, "60 s ahead of that of Postgres"), (221, "109 s behind that of")]
)
def test_differs(theirs_s, says):
    """A clock that differs is told with how much, and what to do."""
    found = compare("Postgres", theirs_s, before_s=100, after_s=112)

    assert found.state is State.WRONG
    assert says in found.says
    assert found.says.endswith("let NTP set both")
