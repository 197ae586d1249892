"""What type an argument has that is written without quotes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.dialect.argument_types import ArgumentType, quoted
from gpu_worker.dialect.tools import Tool

SCHEMA = {
    "type": "object",
    "$defs": {"Zip": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}},
    "properties": {
        "text": {"type": "string"},
        "zip": {"$ref": "#/$defs/Zip"},
        "loop": {"$ref": "#/$defs/Loop"},
        "count": {"type": "integer"},
        "flag": {"type": "boolean"},
        "maybe": {"type": ["string", "null"]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "choice": {"enum": ["1", "2"]},
        "list": {"type": "array", "items": {"type": "string"}},
        "nested": {"type": "object", "properties": {"a": {"type": "string"}}},
        "any": {},
    },
}
ARGUMENTS = ArgumentType.of(Tool("f", parameters=SCHEMA))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("text", "01234", '"01234"'),
        ("text", "null", '"null"'),
        ("text", ' a "b"\n', '" a \\"b\\"\\n"'),
        ("zip", "12", '"12"'),
        ("loop", "12", "12"),
        ("count", "12", "12"),
        ("count", "None", "null"),
        ("count", "twelve", '"twelve"'),
        ("flag", "True", "true"),
        ("flag", "1", '"1"'),
        ("maybe", "null", "null"),
        ("maybe", "12", '"12"'),
        ("either", "12", "12"),
        ("either", "012", '"012"'),
        ("either", "1.5", '"1.5"'),
        ("either", "2.0", "2.0"),
        ("count", "1.5", "1.5"),
        ("choice", "1", '"1"'),
        ("list", "['a', True]", '["a", true]'),
        ("list", '["a"]', '["a"]'),
        ("list", "[a", '"[a"'),
        ("list", "['\\ud800']", "\"['\\\\ud800']\""),
        ("any", "1.50", "1.50"),
        ("any", "NaN", '"NaN"'),
        ("any", "Oslo", '"Oslo"'),
        ("any", "true", "true"),
        ("undeclared", "é", '"é"'),
    ],
)
def test_the_schema_decides(name, text, expected):
    """A value becomes what its schema allows, and a text where it is nothing of that."""
    assert ARGUMENTS.at(name).as_json(text) == expected


def test_places_within_places():
    """Properties of objects and elements of lists have types of their own."""
    assert ARGUMENTS.at("nested").at("a").is_text
    assert ARGUMENTS.at("list").element().is_text
    assert not ARGUMENTS.at("any").at("a").is_text
    assert ARGUMENTS.at("nested").names == {"a"}
    assert ARGUMENTS.at("any").names == ARGUMENTS.at("text").names == frozenset()


def test_where_a_text_may_stand():
    """A text is allowed where the schema says so, or says nothing."""
    may_be = [name for name in SCHEMA["properties"] if ARGUMENTS.at(name).may_be_text]
    assert may_be == ["text", "zip", "loop", "maybe", "either", "choice", "any"]


@pytest.mark.parametrize(
    ("name", "begun", "expected"),
    [
        ("text", "", True),
        ("any", "", False),
        ("any", " \n", False),
        ("any", "Os", True),
        ("any", "n", False),
        ("any", "Non", False),
        ("any", "Nono", True),
        ("any", "-1.5e", False),
        ("any", "2024-05", True),
        ("any", "[", False),
        ("maybe", "nul", False),
        ("maybe", "{", True),
        ("maybe", "7", True),
        ("count", "{", True),
        ("flag", "tru", False),
        ("list", "x", True),
    ],
)
def test_a_text_is_known_early(name, begun, expected):
    """It is one as soon as nothing else that the schema allows begins like it."""
    assert ARGUMENTS.at(name).is_surely_text(begun) is expected


values = st.lists(
    st.sampled_from([*'0-1.eE+ \n"a{[]}n', "nul", "l", "None", "true", "T", "ni", '{"a": 1}'])
).map("".join)


@given(name=st.sampled_from(sorted(SCHEMA["properties"])), text=values, at=st.integers(0, 12))
def test_what_is_known_early_stays_true(name, text, at):
    """Whatever follows, the value becomes a text."""
    place = ARGUMENTS.at(name)
    if place.is_surely_text(text[:at]):
        assert place.is_surely_text(text)
        assert place.as_json(text) == quoted(text)
