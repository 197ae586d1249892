"""Says what is wrong with a field: its name, and what it may be, read from the Struct itself."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

_PATH = re.compile(r"\$\S*(?=`$)")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(?:\d+|\.\.\.)\]")
_MISSING = re.compile(r"missing required field `(\w+)`")


def explain(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
    """Turn msgspec's message about a field of ``kind`` into one sentence for a client."""
    text = str(error)
    found = _PATH.search(text)
    path = found.group() if found else "$"
    name = path.removeprefix("$").removeprefix(".")
    if missing := _MISSING.search(text):
        return f"{name}.{missing[1]} is required".removeprefix(".")
    node = _node(_shape(kind), path)
    if "got `null`" in text or (_is_text(node) and "of length >= 1" in text and name == "model"):
        return f"{name or 'the body'} is required"
    return f"{name or 'the body'} must be {describe(node)}"


def describe(node: inspect.Type) -> str:
    """Say in words what a type takes: ``a whole number from 1 to 16384``."""
    return _WORDS[type(node)](node)


def whole_fields(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Names of the fields that are whole numbers."""
    info = _shape(kind)
    assert isinstance(info, inspect.StructType)
    return frozenset(
        field.encode_name
        for field in info.fields
        if any(isinstance(each, inspect.IntType) for each in _alternatives(field.type))
    )


@cache
def _shape(kind: type[msgspec.Struct]) -> inspect.Type:
    """Read a Struct once: that costs as much as to answer several good requests."""
    return inspect.type_info(kind)


def _list(node: Any) -> str:
    items = "strings" if isinstance(node.item_type, inspect.StrType) else "objects"
    if node.max_length is not None:
        return f"a list of at most {node.max_length} {items}"
    return f"a non-empty list of {items}" if node.min_length else f"a list of {items}"


def _union(node: Any) -> str:
    kinds = [each for each in node.types if not isinstance(each, inspect.NoneType)]
    return " or ".join(describe(each) for each in kinds)


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return ""
    return f" from {_plain(low)} to {_plain(high)}"


def _plain(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def _is_text(node: inspect.Type) -> bool:
    return isinstance(node, inspect.StrType)


def _node(node: inspect.Type, path: str) -> inspect.Type:
    """Follow a path such as ``$.messages[0].content`` down from the outermost type."""
    for step in _STEP.finditer(path):
        for each in _alternatives(node):
            below = _below(each, step[1])
            if below is not None:
                node = below
                break
    return node


def _alternatives(node: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(node, inspect.UnionType):
        yield from node.types
    else:
        yield node


def _below(node: inspect.Type, name: str | None) -> Any:
    if name is None:
        return node.item_type if isinstance(node, inspect.ListType) else None
    if isinstance(node, inspect.StructType):
        return next((field.type for field in node.fields if field.encode_name == name), None)
    return None


_WORDS: dict[type[inspect.Type], Callable[[Any], str]] = {
    inspect.BoolType: lambda _: "true or false",
    inspect.IntType: lambda node: "a whole number" + _range(node.ge, node.le),
    inspect.FloatType: lambda node: "a number" + _range(node.ge, node.le),
    inspect.StrType: lambda node: "a non-empty string" if node.min_length else "a string",
    inspect.LiteralType: lambda node: "one of " + ", ".join(f"'{each}'" for each in node.values),
    inspect.ListType: _list,
    inspect.UnionType: _union,
    inspect.StructType: lambda _: "an object",
    inspect.DictType: lambda _: "an object",
}
