"""What no engine can hold a model to is named; what says nothing is let pass."""

import pytest

from fastrun.service.json_schema import target, unenforceable


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"uniqueItems": True}, '"uniqueItems"'),
        ({"contains": {}}, '"contains"'),
        ({"not": {"type": "null"}}, '"not"'),
        ({"if": {}, "else": {"type": "null"}}, '"if"'),
        ({"dependentRequired": {"a": ["b"]}}, '"dependentRequired"'),
        ({"dependentSchemas": {"a": {"type": "object"}}}, '"dependentSchemas"'),
        ({"dependencies": 3}, '"dependencies"'),
        ({"propertyNames": {"format": "uuid"}}, '"propertyNames"'),
        ({"unevaluatedProperties": False}, '"unevaluatedProperties"'),
        ({"unevaluatedItems": {"type": "null"}}, '"unevaluatedItems"'),
        ({"$dynamicRef": "#a"}, '"$dynamicRef"'),
        ({"$recursiveRef": "#"}, '"$recursiveRef"'),
        ({"format": "phone"}, '"format": "phone"'),
        ({"type": ["null", "string"], "format": "int32"}, '"format": "int32"'),
        ({"format": {}}, '"format": "{}"'),
    ],
)
def test_unenforceable(schema, keyword):
    """The keyword is named as the schema writes it."""
    assert unenforceable(schema) == keyword


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"uniqueItems": False, "minContains": 3, "not": False, "unevaluatedItems": True},
        {"if": {"type": "null"}, "then": {}, "else": True},
        {"then": {"type": "null"}},
        {"dependentRequired": {"a": []}, "dependentSchemas": {"a": True}},
        {"propertyNames": {"pattern": "^a", "$comment": "why"}, "unevaluatedProperties": {}},
        {"type": "string", "format": "date-time"},
        {"type": "integer", "format": "phone"},
        {"format": "int64"},
        {"$dynamicAnchor": "a", "x-own": 1, "properties": {"not": {"not": {"type": "null"}}}},
        {"not": {}},
    ],
)
def test_enforceable(schema):
    """What changes nothing, and what can be said otherwise, is no reason to refuse."""
    assert unenforceable(schema) is None


def test_target():
    """Pointers lead into objects and lists, and escapes are undone."""
    root = {"a/b": [{"c~ d": 1}], "": 2}
    assert target(root, "#") is root
    assert target(root, "#/a~1b/0/c~0%20d") == 1
    assert target(root, "#/") == 2


@pytest.mark.parametrize(
    "index", ["2", "01", "-1", "1_0", "\u0661", "\u00b2", "1" * 5000, "", "0/x"]
)
def test_no_target(index):
    """What is not there is not found, however it is written."""
    with pytest.raises(KeyError):
        target({"a": [True, True]}, f"#/a/{index}")
