"""Arguments that are written one by one are held to the tool's schema."""

import json

import jsonschema
import pytest
from grammar_texts import GrammarTexts

from gpu_worker.dialect.argument_grammar import arguments
from gpu_worker.dialect.argument_types import ArgumentType
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.grammar import GrammarError, Sequence

ROOT = {"$defs": {"Level": {"enum": ["low", "high"]}, "Node": {"type": "array"}}}
ANY_OF = [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]


def tool(schema, **rest):
    """Return a tool with one argument ``a``, which it has to have."""
    properties = {"properties": {"a": schema}, "required": ["a"]}
    return Tool("f", parameters={"type": "object", **properties, **ROOT, **rest})


def texts(schema):
    """Return what may be written of one argument."""
    (argument,) = arguments(tool(schema))
    value = argument.value("\n.", without=("STOP",))
    return GrammarTexts(value, ends=['"', "]", "}", "\n."])


@pytest.mark.parametrize(
    ("schema", "fit", "unfit"),
    [
        ({"type": "string"}, ["", "a\n", " 12", '"', "null", "STO"], ["aSTOPb"]),
        ({"type": "string", "minLength": 1, "maxLength": 3}, ["a", "éé🐱"], ["", "abcd"]),
        ({}, ["12", "a", "[1", "STO"], ["STOP"]),
        ({"type": "integer"}, ["12", "-3"], ["1.5", "a", "", "012"]),
        ({"type": "integer", "minimum": 3}, ["3"], ["2"]),
        ({"type": "boolean"}, ["true", "false"], ["True", "1"]),
        ({"type": "object"}, ["{}", '{"a": "STOP"}'], ["[]", "a"]),
        ({"enum": ["a", "b c"]}, ["a", "b c"], ["b", ""]),
        ({"enum": ["a", 1, None]}, ["a", "1", "null"], ["2", "b"]),
        ({"const": "a\n"}, ["a\n"], ["a"]),
        ({"$ref": "#/$defs/Level", "description": "?"}, ["low"], ["lower"]),
        ({"allOf": [{"$ref": "#/$defs/Level"}], "default": "low"}, ["high"], ["?"]),
        ({"type": ["string", "null"], "maxLength": 4}, ["null", "a"], ["abcde"]),
        ({"type": ["string", "integer"]}, ["a", "12", "1.5"], ["STOP"]),
        ({"type": ["integer", "null"]}, ["12", "null"], ["None", "a"]),
        ({"anyOf": ANY_OF}, ["a", "[1, 2]", "a[1"], ['["a"]', "[", " [1", "{}"]),
        ({"oneOf": ANY_OF}, ["a", "[1, 2]"], ['["a"]']),
        (
            {"anyOf": [{"$ref": "#/$defs/Level"}, {"type": "integer", "maximum": 9}]},
            ["low", "9"],
            ["10", "a"],
        ),
        ({"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}, ["[]", "null"], ["a"]),
        ({"type": "array", "items": {"$ref": "#/$defs/Level"}}, ['["low"]'], ['["?"]']),
    ],
)
def test_values(schema, fit, unfit):
    """What the schema allows may be written, as it is read, and nothing else."""
    written, place = texts(schema), ArgumentType.of(tool(schema)).at("a")
    assert [text for text in (*fit, *unfit) if written.allow(f"{text}\n.")] == fit
    validator = jsonschema.Draft202012Validator({**ROOT, **schema})
    for text in fit:
        validator.validate(json.loads(place.as_json(text)))
    for seed in range(20):
        text = written.random(seed).removesuffix("\n.")
        validator.validate(json.loads(place.as_json(text)))
        assert "STOP" not in text or text.startswith(("[", "{"))


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "string", "pattern": "^a$"}, "pattern"),
        ({"type": "string", "format": "date"}, "format"),
        ({"type": "string", "not": {"const": "a"}}, "not"),
        ({"minLength": 1}, "minLength"),
        ({"type": "string", "maxLength": "9"}, "maxLength"),
        ({"minimum": 1}, "minimum"),
        ({"type": ["string", "integer"], "minimum": 1}, "minimum"),
        ({"anyOf": [{"type": "string"}, {"const": 1}]}, "const"),
        ({"anyOf": [{"type": "string"}], "minLength": 1}, "minLength"),
        ({"anyOf": [{"type": "string"}, {}], "type": "string"}, "type"),
        ({"oneOf": [{"type": "string"}, {"enum": ["a"]}]}, "oneOf"),
        ({"allOf": [{"type": "string"}, {"maxLength": 3}]}, "allOf"),
        ({"enum": ["STOP"]}, "enum"),
        ({"enum": 3}, "enum"),
        ({"anyOf": [{"enum": ["1"]}, {"type": "integer"}]}, "enum"),
    ],
)
def test_what_cannot_be_enforced_is_named(schema, keyword):
    """No keyword is ignored."""
    with pytest.raises(GrammarError, match=f'"{keyword}"'):
        texts(schema)


def test_recursion_ends():
    """A schema that refers to itself for ever allows nothing."""
    loop = {"$defs": {"Loop": {"$ref": "#/$defs/Loop"}}}
    (argument,) = arguments(tool({"$ref": "#/$defs/Loop"}, **loop))
    with pytest.raises(GrammarError, match=r'"\$ref"'):
        argument.value(".", without=())


def test_arguments_in_order():
    """They come as they are declared; what is required and not declared comes last."""
    schema = {"properties": {"b": {}, "a": {}}, "required": ["c", "a"]}
    found = list(arguments(Tool("f", parameters=schema)))
    assert [(each.name, each.is_required) for each in found] == [
        ("b", False),
        ("a", True),
        ("c", True),
    ]
    assert list(arguments(Tool("f"))) == []
    nested = {"$ref": "#/$defs/In", "$defs": {"In": schema}}
    assert len(list(arguments(Tool("f", parameters=nested)))) == 3


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"minProperties": 1}, '"minProperties"'),
        ({"anyOf": [{"required": ["a"]}]}, '"anyOf"'),
        ({"properties": [], "x-of-ours": 1}, '"properties"'),
        ({"required": ["a"], "additionalProperties": False}, 'requires "a"'),
        ({"$ref": "#/$defs/Nowhere"}, r'"\$ref"'),
    ],
)
def test_what_cannot_be_enforced_of_all_arguments_is_named(parameters, reason):
    """Neither is a keyword about all of them ignored."""
    with pytest.raises(GrammarError, match=reason):
        list(arguments(Tool("f", parameters=parameters)))


def test_a_grammar_of_several_values():
    """Each value ends where it should, whatever follows."""
    schema = {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
    values = [
        argument.value(";", without=()) for argument in arguments(Tool("f", parameters=schema))
    ]
    written = GrammarTexts(Sequence(tuple(values)))
    assert written.allow("1,2;3;")
    assert not written.allow("1;2;3;")
