"""Which JSON Schemas are refused before any model is asked."""

import json

import pytest

from edge.errors import Refusal
from edge.json_schema import SCHEMA_NODES, check_enforceable, check_schema

TYPES = "array, boolean, integer, null, number, object, string"
NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["next"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": ["integer", "null"], "title": "t", "x-own": [1], "default": None},
        {"$defs": {"node": NODE, "a b": True}, "$ref": "#/$defs/node"},
        {"$defs": {"a b": {}}, "items": {"$ref": "#/%24defs/a%20b"}},
        {"items": [{}, {}], "contains": {"$ref": "#/items/1"}, "not": {"$ref": "#/items/0"}},
        {"properties": {"a/b": {}, "c": {"$ref": "#/properties/a~1b"}, "d": {"$ref": "#"}}},
        {"type": "array", "items": {"minimum": 1, "maximum": 9}, "minItems": 3, "maxItems": 3.0},
        {"items": [{"type": "string"}, True], "prefixItems": [{}]},
        {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$", "format": "date", "minLength": 0},
        {"enum": ["猫", None, {"a": 1}], "const": {"type": "hiccup"}},
        {"properties": {"type": {"type": "string"}, "enum": {}, "$ref": {"type": "string"}}},
        {"patternProperties": {"^x-": {"exclusiveMinimum": 0, "multipleOf": 0.5}}},
        {"not": {"const": 10**40}},
    ],
)
def test_taken(schema):
    """What is valid passes, with keywords that nobody knows."""
    check_schema(schema, "schema")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"type": "hiccup"},
            f"s.type must be one or several of {TYPES}",
        ),
        (
            {"properties": {"a": "bar"}},
            "s.properties.a must be a schema: an object, true or false",
        ),
        ({"properties": []}, "s.properties must be an object of schemas"),
        ({"anyOf": []}, "s.anyOf must be a non-empty list of schemas"),
        ({"anyOf": [{}, {"enum": []}]}, "s.anyOf[1].enum must be a non-empty list"),
        ({"items": {"required": True}}, "s.items.required must be a list of strings"),
        ({"minLength": -1}, "s.minLength must be a whole number from 0"),
        ({"minLength": 1.5}, "s.minLength must be a whole number from 0"),
        ({"maximum": "9"}, "s.maximum must be a number"),
        ({"multipleOf": 0}, "s.multipleOf must be over 0"),
        ({"pattern": 1}, "s.pattern must be a string"),
        (
            {"pattern": "foo**("},
            "s.pattern is not a valid regular expression: a quantifier has nothing to repeat",
        ),
        (
            {"patternProperties": {"(": {}}},
            "s.patternProperties is not a valid regular expression: a group is not closed",
        ),
        ({"$ref": "#/$defs/missing"}, "s.$ref points to '#/$defs/missing', which does not exist"),
        *(
            (
                {"items": [{}, {}], "$ref": f"#/items/{index}"},
                f"s.$ref points to '{f'#/items/{index}'[:100]}', which does not exist",
            )
            for index in ("2", "01", "-1", "1_0", "\u0661", "\u00b2", "1" * 5000, "")
        ),
        (
            {"$ref": "http://127.0.0.1:9/x.json"},
            "s.$ref must point into the schema itself, such as '#/$defs/x'",
        ),
    ],
)
def test_refused(schema, message):
    """The keyword that is wrong is named, with what it may be."""
    with pytest.raises(Refusal) as caught:
        check_schema(schema, "s")
    assert (caught.value.status, caught.value.message) == (400, message)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            json.loads('{"not":' * 65 + "{}" + "}" * 65),
            "schemas are nested deeper than 64 levels",
        ),
        ({"const": json.loads("[" * 201 + "]" * 201)}, "is nested deeper than 200 levels"),
        ({"description": "x" * 300_000}, "is longer than 262144 bytes"),
        (
            {"properties": {str(n): {} for n in range(SCHEMA_NODES)}},
            "a schema may hold at most 10000 schemas",
        ),
    ],
)
def test_too_much(schema, message):
    """Size and nesting have limits, and the message stays short."""
    with pytest.raises(Refusal) as caught:
        check_schema(schema, "s")
    assert message in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"uniqueItems": True}, 's uses "uniqueItems", which cannot be enforced: leave it out'),
        (
            {"properties": {"a": {"items": [{}, {"not": {"type": "null"}}]}}},
            's.properties.a.items[1] uses "not", which cannot be enforced: leave it out',
        ),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [True, {"format": "phone"}]}}},
            's.$defs.a.anyOf[1] uses "format": "phone", which cannot be enforced: leave it out',
        ),
        (
            {"additionalProperties": {"patternProperties": {"^a": {"contains": {}}}}},
            (
                's.additionalProperties.patternProperties.^a uses "contains", '
                "which cannot be enforced: leave it out"
            ),
        ),
    ],
)
def test_unenforceable(schema, message):
    """What no engine can hold an answer to is refused with its place, behind references too."""
    with pytest.raises(Refusal) as caught:
        check_enforceable(schema, "s")
    assert caught.value.message == message


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"uniqueItems": {"type": "boolean"}}, "default": {"not": {"type": "null"}}},
        {"$defs": {"unused": {"uniqueItems": True}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}},
        {"additionalProperties": False, "items": True, "anyOf": [{"format": "date"}]},
    ],
)
def test_enforceable(schema):
    """What is not in use is not looked at, and recursion is followed once."""
    check_enforceable(schema, "s")
