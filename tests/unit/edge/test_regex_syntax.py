"""Whether a regular expression is well-formed, in the dialect of JSON Schema."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.regex_syntax import syntax_error


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "^[0-9]{4}-[0-9]{2}$",
        "^((a{1,100}){1,100}){1,100}$",
        r"\p{L}+\/\u{1F600}\cA",
        "(?:a|b)*?(?=c)(?!d)(?<=e)(?<!f)(?<name>g)\\k<name>",
        "[]",
        "[^]]x]",
        r"[\]a-z\d-]+",
        "a{,3}",
        "x{2,}?",
        "{not a quantifier}",
        "a||b()",
        "猫+",
    ],
)
def test_well_formed(pattern):
    """What some engine can take passes."""
    assert syntax_error(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("foo**(", "a quantifier has nothing to repeat"),
        ("*a", "a quantifier has nothing to repeat"),
        ("a|+", "a quantifier has nothing to repeat"),
        ("({2})", "a quantifier has nothing to repeat"),
        ("a{3,2}", "a quantifier runs backwards"),
        ("(a", "a group is not closed"),
        ("a)", "a group is closed that was not opened"),
        ("(?P=x)", "an unknown kind of group begins with (?"),
        ("[a", "a class is not closed"),
        (r"[a\]", "a class is not closed"),
        ("[z-a]", "a range runs backwards"),
        ("a\\", "it ends in a backslash"),
        ("(" * 101 + ")" * 101, "groups are nested deeper than 100 levels"),
        ("a" * 4097, "it is longer than 4096 characters"),
    ],
)
def test_malformed(pattern, problem):
    """What no engine can take is named."""
    assert syntax_error(pattern) == problem


@given(st.text("ab()[]{}*+?|^$\\-,1:=!<", max_size=12))
def test_refuses_nothing_that_python_takes(pattern):
    """Whatever Python's engine compiles passes, but for what only Python knows."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, FutureWarning):
        return
    only_python = re.search(r"\(\?|\+\+|\*\+|\?\+|\}\+|\{,|\[\^?\]|[$^{]", pattern)
    if only_python is None:
        assert syntax_error(pattern) is None
