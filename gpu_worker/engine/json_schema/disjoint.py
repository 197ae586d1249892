"""Whether JSON Schemas surely have no value in common, as "oneOf" asks of its alternatives."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any] | bool

MAX_COMPARISONS = 20_000  # some 50 ms
_MAX_DEPTH = 16
_TYPES = frozenset({"array", "boolean", "null", "number", "object", "string"})


class Disjointness:
    """Compares the schemas of one document, until that took too many comparisons."""

    def __init__(self, resolve: Callable[[str], Schema]) -> None:
        """Begin.

        Args:
            resolve: returns what a "$ref" of the document means.
        """
        self._resolve = resolve
        self._left = MAX_COMPARISONS
        self._facts: dict[int, tuple[frozenset[str], frozenset[str] | None]] = {}

    def of_all(self, schemas: Sequence[Schema]) -> bool:
        """Tell whether no value satisfies two of these; False also where that is not clear.

        Args:
            schemas: canonical ones, which live as long as this object.
        """
        return all(
            self._of(first, second, _MAX_DEPTH)
            for at, first in enumerate(schemas)
            for second in schemas[at + 1 :]
        )

    def _of(self, first: Schema, second: Schema, depth: int) -> bool:
        # Every keyword of a schema holds, so that one that excludes the other schema is enough.
        self._left -= 1
        if depth == 0 or self._left < 0:
            return False
        if isinstance(first, bool) or isinstance(second, bool):
            return first is False or second is False
        (types, values), (other_types, other_values) = self._known(first), self._known(second)
        if types.isdisjoint(other_types):
            return True
        if values is not None and other_values is not None and values.isdisjoint(other_values):
            return True
        if types == other_types == {"object"} and self._of_properties(first, second, depth - 1):
            return True
        return self._of_parts(first, second, depth - 1) or self._of_parts(second, first, depth - 1)

    def _of_parts(self, first: Mapping[str, Any], second: Schema, depth: int) -> bool:
        if "$ref" in first and self._of(self._resolve(first["$ref"]), second, depth):
            return True
        if any(self._of(part, second, depth) for part in first.get("allOf", ())):
            return True
        return any(
            all(self._of(option, second, depth) for option in first[keyword])
            for keyword in ("anyOf", "oneOf")
            if keyword in first
        )

    def _of_properties(
        self, first: Mapping[str, Any], second: Mapping[str, Any], depth: int
    ) -> bool:
        """Tell whether a property that one of two objects needs cannot satisfy both."""
        names = dict.fromkeys([*first.get("required", ()), *second.get("required", ())])
        return any(
            self._of(_property(first, name), _property(second, name), depth) for name in names
        )

    def _known(self, schema: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[str] | None]:
        """Return the types and, where they are listed, the values that a schema allows."""
        if id(schema) not in self._facts:
            types, values = _types(schema), _values(schema)
            keys = None
            if values is not None:
                types &= {_type(value) for value in values}
                keys = frozenset(json.dumps(_plain(value), sort_keys=True) for value in values)
            self._facts[id(schema)] = types, keys
        return self._facts[id(schema)]


def _property(schema: Mapping[str, Any], name: str) -> Schema:
    """Return what a property of that name has to satisfy, or less than that."""
    found: Schema | None = schema.get("properties", {}).get(name)
    if found is not None:
        return found
    return schema.get("additionalProperties") is not False or "patternProperties" in schema


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    types = schema.get("type", _TYPES)
    named = frozenset([types] if isinstance(types, str) else types)
    return named - {"integer"} | {"number"} if "integer" in named else named


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    values: list[Any] | None = [schema["const"]] if "const" in schema else schema.get("enum")
    return values


def _plain(value: Any) -> Any:
    """Write equal numbers alike: 1.0 is 1."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case _:
            return value


def _type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "number"
