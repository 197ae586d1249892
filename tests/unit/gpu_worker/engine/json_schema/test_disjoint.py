"""What is told apart has no value in common."""

import itertools

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engine.json_schema.disjoint import Disjointness

DEFINITIONS = {"a": {"const": 1}, "loop": {"$ref": "loop"}, "string": {"type": "string"}}
OBJECT_A = {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]}
OBJECT_B = {"type": "object", "properties": {"k": {"enum": ["b", "c"]}}}


def disjoint(*schemas):
    return Disjointness(DEFINITIONS.__getitem__).of_all(schemas)


@pytest.mark.parametrize(
    "schemas",
    [
        ({"type": "string"}, {"type": ["integer", "null"]}, {"type": "array"}),
        ({"const": 1}, {"const": True}, {"enum": ["1", [1]]}),
        ({"type": "integer"}, {"enum": ["x"]}),
        ({"$ref": "a"}, {"const": 2}),
        ({"allOf": [{"minimum": 1}, {"$ref": "string"}]}, {"anyOf": [{"const": 2}, OBJECT_A]}),
        (OBJECT_A, OBJECT_B),
        (OBJECT_A, {"type": "object", "properties": {}, "additionalProperties": False}),
        (False, True),
        (False, {}),
    ],
)
def test_disjoint(schemas):
    """Types, values, needed properties and parts tell schemas apart, in any order."""
    assert all(disjoint(*order) for order in itertools.permutations(schemas))


@pytest.mark.parametrize(
    "schemas",
    [
        ({"type": "integer"}, {"type": "number"}),
        ({"const": 1}, {"const": 1.0}),
        ({"const": {"a": 1, "b": [2]}}, {"enum": [{"b": [2.0], "a": 1}]}),
        ({"type": "object"}, OBJECT_A),
        ({"properties": {"k": {"const": "a"}}}, {"properties": {"k": {"const": "b"}}}),
        ({"properties": {"k": {"const": "a"}}, "required": ["k"]}, OBJECT_B),
        (OBJECT_A, {"type": "object", "additionalProperties": False, "patternProperties": {}}),
        ({"$ref": "loop"}, {"type": "null"}),
        (True, {"type": "null"}),
        (True, True),
    ],
)
def test_not_clear(schemas):
    """What may overlap, or takes too long to follow, is not called disjoint."""
    assert not any(disjoint(*order) for order in itertools.permutations(schemas))


def test_work_is_limited():
    """A thousand alternatives are given up on, not compared for a minute."""
    assert not disjoint(*({"const": value} for value in range(1000)))


values = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 1.0, "a", "b"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=4,
)
schemas = st.recursive(
    st.booleans()
    | st.builds(lambda value: {"const": value}, values)
    | st.builds(lambda listed: {"enum": listed}, st.lists(values, min_size=1, max_size=3))
    | st.sampled_from([{"type": each} for each in ("null", "integer", "number", "object")])
    | st.just({"type": ["string", "array"]}),
    lambda inner: (
        st.builds(
            lambda properties, required, *, closed: {
                "type": "object",
                "properties": properties,
                "required": required,
                **({"additionalProperties": False} if closed else {}),
            },
            st.dictionaries(st.sampled_from("ab"), inner),
            st.lists(st.sampled_from("ab"), max_size=2),
            closed=st.booleans(),
        )
        | st.builds(
            lambda keyword, parts: {keyword: parts},
            st.sampled_from(["allOf", "anyOf", "oneOf"]),
            st.lists(inner, min_size=1, max_size=2),
        )
    ),
    max_leaves=5,
)


@given(schemas, schemas, st.lists(values, max_size=20))
def test_nothing_fits_both(first, second, instances):
    """No value satisfies two schemas that are called disjoint."""
    if disjoint(first, second):
        for value in instances:
            fits = [
                jsonschema.Draft202012Validator(schema).is_valid(value)
                for schema in (first, second)
            ]
            assert not all(fits)
