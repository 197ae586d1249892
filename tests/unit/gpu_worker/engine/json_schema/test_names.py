"""Constraints on names of properties are said by listing or matching the names."""

import pytest

from gpu_worker.engine.grammar import GrammarError
from gpu_worker.engine.json_schema.names import with_named_properties

VALUE = {"type": "integer"}


def said(names, **schema):
    definitions = {"#/names": {"enum": ["a"]}, "#/again": {"$ref": "#/again"}}
    return with_named_properties({"propertyNames": names, **schema}, definitions.__getitem__)


@pytest.mark.parametrize("names", [True, {}, {"type": "string"}, {"title": "t"}])
def test_any_name(names):
    """What every name satisfies is left out."""
    assert said(names, additionalProperties=VALUE) == {"additionalProperties": VALUE}


@pytest.mark.parametrize("names", [False, {"type": "integer"}, {"enum": [1]}])
def test_no_name(names):
    """What no name satisfies allows the empty object."""
    assert said(names) == {"properties": {}, "additionalProperties": False}


def test_listed_names():
    """Each is a property, of its own schema or that of all others."""
    names = {"enum": ["a", "b"], "description": "which"}
    assert said(names, properties={"b": {}, "c": {}}, additionalProperties=VALUE) == {
        "properties": {"a": VALUE, "b": {}},
        "additionalProperties": False,
    }
    assert said({"$ref": "#/names"})["properties"] == {"a": True}
    assert said({"const": "a", "type": "string"})["properties"] == {"a": True}


def test_matched_names():
    """A pattern or a length is a pattern of properties."""
    assert said({"pattern": "^x"}, additionalProperties=VALUE) == {
        "patternProperties": {"^x": VALUE},
        "additionalProperties": False,
    }
    assert said({"minLength": 2, "maxLength": 5})["patternProperties"] == {r"^[\s\S]{2,5}$": True}
    assert said({"minLength": 1})["patternProperties"] == {r"^[\s\S]{1,}$": True}


@pytest.mark.parametrize(
    "schema",
    [
        {"names": {"pattern": "^x"}, "properties": {"a": {}}},
        {"names": {"enum": ["a"]}, "patternProperties": {"b": {}}},
        {"names": {"enum": ["a"], "minLength": 1}},
        {"names": {"$ref": "#/again"}},
        {"names": 3},
    ],
)
def test_refused(schema):
    """What would take more than that is refused."""
    with pytest.raises(GrammarError, match="propertyNames"):
        said(**schema)
