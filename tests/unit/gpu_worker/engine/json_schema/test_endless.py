"""Recursion has to end somewhere."""

import pytest

from gpu_worker.engine.json_schema.endless import is_endless

NODE = {"$ref": "#/$defs/node"}


def needs(schema):
    return {"type": "object", "properties": {"next": schema}, "required": ["next"]}


@pytest.mark.parametrize(
    "node",
    [
        NODE,
        needs(NODE),
        {"allOf": [{"type": "object"}, needs(NODE)]},
        {"anyOf": [needs(NODE), needs(needs(NODE))]},
        {"type": "array", "items": NODE, "minItems": 1},
        {"type": "array", "prefixItems": [True, NODE], "minItems": 2},
    ],
)
def test_endless(node):
    """What always holds another of its kind has no end."""
    assert is_endless({**NODE, "$defs": {"node": node}})
    assert is_endless(needs({"$ref": "#/$defs/other"}) | {"$defs": {"node": node, "other": NODE}})


@pytest.mark.parametrize(
    "node",
    [
        {"type": "null"},
        {"type": "object", "properties": {"next": NODE}},
        needs({"anyOf": [NODE, {"type": "null"}]}),
        {"type": ["object", "null"], "properties": {"next": NODE}, "required": ["next"]},
        {"type": "array", "items": NODE},
        {"type": "array", "prefixItems": [True, NODE], "items": NODE, "minItems": 1},
    ],
)
def test_ends(node):
    """What may leave the next one out ends."""
    assert not is_endless({**NODE, "$defs": {"node": node}})


def test_chain():
    """Definitions in any order are followed, and a chain too long to follow is let pass."""
    chain = {str(at): {"$ref": f"#/$defs/{at + 1}"} for at in range(1000)} | {"1000": {}}
    assert not is_endless({"$ref": "#/$defs/0", "$defs": chain})
    assert not is_endless({"$ref": "#/$defs/0", "$defs": dict(reversed(chain.items()))})
