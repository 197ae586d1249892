"""Schemas of any manner are written in the keywords that are enforced, or refused."""

import json

import pytest

from gpu_worker.engine.grammar import GrammarError
from gpu_worker.engine.json_schema.canonical import MAX_NESTING, canonical

CAT = {"type": "object", "properties": {"pet": {"const": "cat"}}, "required": ["pet"]}
DOG = {"type": "object", "properties": {"pet": {"const": "dog"}}, "required": ["pet"]}


def written(schema):
    return canonical(json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, True),
        ({"title": "t", "x-own": [1], "$schema": "http://x", "deprecated": True}, {}),
        ({"type": ["string"], "maxLength": 3.0}, {"type": "string", "maxLength": 3}),
        ({"maxItems": (1 << 31) - 1, "minItems": 1}, {"minItems": 1}),
        ({"uniqueItems": False, "minContains": 2, "not": False, "if": {"type": "null"}}, {}),
        ({"not": {}}, False),
        (
            {"items": [{}, True], "additionalItems": {"type": "null"}},
            {"prefixItems": [{}, True], "items": {"type": "null"}},
        ),
        (
            {"prefixItems": [{}], "items": False, "additionalItems": True},
            {"prefixItems": [{}], "items": False},
        ),
        (
            {"minimum": 5, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False},
            {"minimum": 5.000000001, "maximum": 9},
        ),
        (
            {"type": "integer", "format": "int8"},
            {"type": "integer", "allOf": [{"minimum": -128, "maximum": 127}]},
        ),
        ({"type": "integer", "format": "uuid"}, {"type": "integer"}),
        ({"format": "float"}, {}),
        ({"format": "uuid"}, {"allOf": [{"format": "uuid"}]}),
        (
            {"anyOf": [{"type": "null"}], "oneOf": [True]},
            {"anyOf": [{"type": "null"}], "allOf": [{"anyOf": [True]}]},
        ),
        ({"properties": {"not": {}, "$id": True}}, {"properties": {"not": {}, "$id": True}}),
        ({"const": {"not": {"$ref": 1}}}, {"const": {"not": {"$ref": 1}}}),
    ],
)
def test_one_schema(schema, expected):
    """What says nothing is left out, and what says the same in another way is brought into one."""
    assert written(schema) == expected


def test_properties_keep_their_order():
    """Answers come in the order in which a schema lists properties."""
    schema = written({"properties": {"b": {}, "a": {}}, "required": ["c", "a", "c"]})
    assert list(schema["properties"]) == ["b", "a"]
    assert schema["required"] == ["c", "a"]


def test_references_become_definitions():
    """Whatever is referred to stands once under "$defs", and nothing else does."""
    schema = written(
        {
            "type": "array",
            "items": {"$ref": "#/parts/a~1b%20c"},
            "prefixItems": [{"$ref": "#/parts/a~1b%20c", "description": "no matter"}],
            "parts": {"a/b c": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "other": {"not": 1}},
        }
    )
    assert schema["items"] == schema["prefixItems"][0] == {"$ref": "#/$defs/a_1b_20c_0"}
    assert schema["$defs"]["a_1b_20c_0"]["anyOf"][1] == {"$ref": "#/$defs/__1"}
    assert schema["$defs"]["__1"] == {key: schema[key] for key in ("type", "items", "prefixItems")}
    assert len(schema["$defs"]) == 2


@pytest.mark.parametrize(
    "alternatives",
    [
        [CAT, DOG],
        [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}, {"type": "null"}],
        [{"allOf": [{"$ref": "#/$defs/cat"}]}, {"anyOf": [{"$ref": "#/$defs/dog"}]}],
    ],
)
def test_alternatives_that_exclude_one_another(alternatives):
    """Where no value fits two of them, "oneOf" is "anyOf"."""
    schema = written({"oneOf": alternatives, "$defs": {"cat": CAT, "dog": DOG}})
    assert "oneOf" not in schema
    assert len(schema["anyOf"]) == len(alternatives)


def test_alternatives_that_may_fit_at_once():
    """They are left for the library to judge."""
    assert "oneOf" in written({"oneOf": [CAT, {"type": "object"}]})


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        ({"uniqueItems": True}, '"uniqueItems"'),
        ({"properties": {"a": {"items": {"contains": {}}}}}, '"contains"'),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "contains": {}}, '"contains"'),
        ({"type": "string", "format": "phone"}, '"format": "phone"'),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"if": {}, "then": {"type": "null"}}}}, '"if"'),
        ({"$ref": "#a"}, "must point into it"),
        ({"$ref": "#/a"}, "not in it"),
        ({"$ref": 3}, "must point into it"),
        ({"propertyNames": {"$ref": "#/x"}}, "not in it"),
        ({"items": {"$id": "http://x", "$ref": "#"}}, r'"\$id"'),
        ({"items": 3}, "in place of a schema"),
        ({"anyOf": []}, '"anyOf"'),
        ({"properties": []}, '"properties"'),
        ({"items": [{}], "prefixItems": [{}]}, '"items"'),
        ({"type": "int"}, '"type"'),
        ({"type": [[]]}, '"type"'),
        ({"enum": []}, '"enum"'),
        ({"required": [1]}, '"required"'),
        ({"minLength": -1}, '"minLength"'),
        ({"maxLength": 1.5}, '"maxLength"'),
        ({"minItems": True}, '"minItems"'),
        ({"maximum": "1"}, '"maximum"'),
        ({"multipleOf": 0}, '"multipleOf"'),
        ({"pattern": 1}, '"pattern"'),
        ({"pattern": r"\A"}, "ECMA-262"),
        ({"format": []}, '"format"'),
        ({"patternProperties": {r"\d": {}, "[0-9]": {}}}, '"patternProperties"'),
        ({"minProperties": 2, "required": []}, '"minProperties"'),
        ({"properties": {"a\n": {}}}, "control character"),
        ({"const": "\ud800"}, "surrogate"),
        ({"const": 2**53 + 1}, "9007199254740993"),
        ({"$ref": "#"}, "recursion"),
        ([], "in place of a schema"),
    ],
)
def test_refused(schema, match: str):
    """What cannot be enforced, or is no schema, is refused with its keyword, wherever it stands."""
    with pytest.raises(GrammarError, match=match):
        written(schema)


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"a": Infinity}', "[" * 100_000])
def test_no_json(text: str):
    """What is not JSON, or too deep to be read, is refused."""
    with pytest.raises(GrammarError, match="not JSON"):
        canonical(text)


def test_nesting():
    """A schema can be nested as deeply as engines can follow."""
    with pytest.raises(GrammarError, match="nested"):
        canonical('{"items":' * MAX_NESTING + "{}" + "}" * MAX_NESTING)
    assert canonical('{"items":' * (MAX_NESTING - 2) + "{}" + "}" * (MAX_NESTING - 2))


def test_size():
    """A schema that grows as it is written is not written to its end."""
    names = {"propertyNames": {"$ref": "#/$defs/names"}}
    schema = {"$defs": {"names": {"enum": [f"n{at}" for at in range(5000)]}}, "anyOf": [names] * 9}
    with pytest.raises(GrammarError, match="more than 20000"):
        written(schema)


def test_large_number():
    """A number that no float holds is no crash."""
    assert canonical('{"maximum": 1' + "0" * 400 + "}")
    with pytest.raises(GrammarError, match="number"):
        canonical('{"minimum": 1e999}')
