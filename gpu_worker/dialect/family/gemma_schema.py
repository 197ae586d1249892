"""What a JSON Schema says of a value, as far as Gemma's notation can be held to it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]

ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"$comment", "$schema", "$id", "$defs", "definitions"}
)
OF_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_OF_TEXTS = frozenset({"minLength", "maxLength"})
_OF_LISTS = frozenset({"items", "minItems", "maxItems"})
_OF_OBJECTS = frozenset({"properties", "required", "additionalProperties"})
KNOWN = ANNOTATIONS | OF_NUMBERS | _OF_TEXTS | _OF_LISTS | _OF_OBJECTS | {"type"}

_TYPES: Mapping[str, Any] = {
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": int | float,
    "integer": int,
}


class NotNative(Exception):  # noqa: N818 - no error: the value is written as JSON then
    """A value cannot be written in Gemma's notation."""


def check(holds: object) -> None:
    """Go on only if something is as it has to be.

    Raises:
        NotNative: it is not.
    """
    if not holds:
        raise NotNative


def meant(schema: Schema) -> str:
    """Return the type that a schema without one is about; empty if it is about none."""
    kinds = {"object": _OF_OBJECTS, "array": _OF_LISTS, "string": _OF_TEXTS, "number": OF_NUMBERS}
    return next((kind for kind, keywords in kinds.items() if keywords & schema.keys()), "")


def listed(schema: Schema) -> list[Any]:
    """Return the values that a schema lists, all of them texts, numbers, booleans or null.

    Raises:
        NotNative: it says more than that.
    """
    check(schema.keys() <= ANNOTATIONS | {"enum", "const", "type"})
    check(not {"enum", "const"} <= schema.keys())
    values = [schema["const"]] if "const" in schema else schema["enum"]
    types = schema.get("type", list(_TYPES))
    kinds = [types] if isinstance(types, str) else types
    check(isinstance(values, list) and isinstance(kinds, list))
    check(not any(isinstance(value, dict | list) for value in values))
    allowed = [value for value in values if any(_is_a(value, kind) for kind in kinds)]
    check(allowed)
    return allowed


def count(schema: Schema, keyword: str, default: int | None = None) -> int | None:
    """Return a number of characters or items.

    Raises:
        NotNative: it is none.
    """
    value = schema.get(keyword, default)
    if value is None:
        return None
    check(isinstance(value, int | float) and not isinstance(value, bool))
    check(value >= 0 and float(value).is_integer())
    return int(value)


def references(schema: Any) -> Iterator[str]:
    """Yield all references in a schema."""
    level: Sequence[Any] = [schema]
    while level:
        for each in level:
            if isinstance(each, Mapping) and isinstance(each.get("$ref"), str):
                yield each["$ref"]
        level = [
            inner
            for each in level
            if isinstance(each, Mapping | list)
            for inner in (each.values() if isinstance(each, Mapping) else each)
        ]


def _is_a(value: Any, kind: object) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, float) and value.is_integer() and kind == "integer":
        return True
    return isinstance(kind, str) and isinstance(value, _TYPES.get(kind, ()))
