"""Tools in the terms of Gemma's templates."""

import pytest

from gpu_worker.dialect.family.gemma_declarations import declaration
from gpu_worker.dialect.tools import Tool

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}


def shown(schema):
    """Return what is declared of one argument."""
    parameters = {
        "properties": {"v": schema},
        "$defs": {"node": NODE, "unit": {"enum": ["c", "f"]}},
    }
    made = declaration(Tool("f", parameters=parameters))["function"]["parameters"]
    assert made["type"] == "object"
    return made["properties"]["v"]


def test_a_tool_keeps_its_name_and_description():
    """One without arguments takes an object without fields."""
    assert declaration(Tool("now", "The time")) == {
        "type": "function",
        "function": {
            "name": "now",
            "description": "The time",
            "parameters": {"type": "object", "properties": {}},
        },
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "description": "d", "enum": ["a", "b"]},
        {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        {"description": "anything"},
        {"type": "string", "nullable": True, "maxLength": 3},
    ],
)
def test_what_the_templates_know_stays_as_it_is(schema):
    """Types, texts to choose from, fields and elements."""
    assert shown(schema) == schema


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        ({"type": ["integer", "string"]}, {"type": "integer"}),
        ({"type": "null"}, {"type": "null"}),
        ({"const": "a"}, {"type": "string", "enum": ["a"]}),
        ({"enum": ["a", None]}, {"type": "string", "enum": ["a"], "nullable": True}),
        ({"enum": [1, 2]}, {"enum": [1, 2]}),
        ({"$ref": "#/$defs/unit", "description": "d"},
         {"type": "string", "enum": ["c", "f"], "description": "d"}),
        ({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "title": "t"},
         {"type": "integer", "minimum": 1, "nullable": True, "title": "t"}),
        ({"oneOf": [{"const": "a"}, {"enum": ["b", "c"]}]}, {"type": "string", "enum": ["a", "b", "c"]}),
        ({"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/unit"}}, {"type": "string"}]},
         {"type": "array", "items": {"type": "string", "enum": ["c", "f"]}}),
        ({"allOf": [{"type": "string"}, {"description": "d"}]}, {"type": "string", "description": "d"}),
        ({"$ref": "#/$defs/node"}, {**NODE, "properties": {"next": {"type": "object"}}}),
        ({"$ref": "#/nowhere"}, {}),
        (True, {}),
    ],
)  # fmt: skip
def test_other_keywords_are_said_in_their_terms(schema, expected):
    """Alternatives, references and lists of types become one type that may be null."""
    assert shown(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 5},
        {"type": [7]},
        {"type": []},
        {"anyOf": 3, "allOf": {}, "oneOf": "x", "enum": 1, "$ref": 4},
        {"properties": [], "items": 3},
        {"anyOf": [True, None, {"anyOf": []}]},
    ],
)
def test_nonsense_is_no_error(schema):
    """What is no schema is the client's affair, and is refused elsewhere if at all."""
    assert isinstance(shown(schema), dict)


def test_references_make_no_tool_large():
    """Definitions that double one another are shown so far, and no further."""
    doubling = {
        str(at): {"properties": {name: {"$ref": f"#/$defs/{at + 1}"} for name in "abcd"}}
        for at in range(40)
    }
    parameters = {"properties": {"v": {"$ref": "#/$defs/0"}}, "$defs": {**doubling, "40": {}}}
    made = declaration(Tool("f", parameters=parameters))["function"]["parameters"]["properties"]
    assert 100 < str(made).count("{") < 10_000
