"""Which JSON Schemas are refused before any model is asked: what is surely wrong, or too much.

Only what needs no engine is decided here. A keyword that nobody knows is ignored.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from edge.errors import invalid
from edge.regex_syntax import syntax_error
from fastrun.service.json_schema import target, unenforceable

SCHEMA_BYTES = 256 << 10
SCHEMA_DEPTH = 64
"""Schemas within schemas."""
SCHEMA_NODES = 10_000
_JSON_DEPTH = 200

_CONTAINERS = (dict, list)
_writer = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


def check_schema(schema: dict[str, Any], name: str) -> None:
    """Check a schema that a client sent.

    Args:
        schema: a JSON object, as parsed.
        name: of the field that holds it, for the message.

    Raises:
        Refusal: 400; it is not valid, refers to what is not in it, or is too large.
    """
    check_values(schema, name, bytes_limit=SCHEMA_BYTES, depth_limit=_JSON_DEPTH)
    _Check(schema).schema(schema, name, 0)


def check_enforceable(schema: dict[str, Any], name: str) -> None:
    """Check a schema that an answer is to be held to, for what no engine can hold one to.

    Args:
        schema: one that ``check_schema`` has let pass.
        name: of the field that holds it, for the message.

    Raises:
        Refusal: 400, with the keyword.
    """
    left: list[tuple[Any, str]] = [(schema, name)]
    referred: set[str] = set()
    while left:
        each, place = left.pop()
        if isinstance(each, bool):
            continue
        if reason := unenforceable(each):
            raise invalid(f"{_short(place)} uses {reason}, which cannot be enforced: leave it out")
        left += _parts(each, place)
        reference = each.get("$ref")
        if reference is not None and reference not in referred:
            referred.add(reference)
            left.append((target(schema, reference), name + reference[1:].replace("/", ".")))


def _parts(schema: dict[str, Any], name: str) -> Iterator[tuple[Any, str]]:
    """Find the schemas within one that are enforced where it is."""
    for keyword, value in schema.items():
        below = f"{name}.{keyword}"
        if keyword not in _ENFORCED:
            continue
        if isinstance(value, list):
            yield from ((each, f"{below}[{index}]") for index, each in enumerate(value))
        elif keyword in _OF_NAMES:
            yield from ((each, f"{below}.{key}") for key, each in value.items())
        else:
            yield value, below


def check_values(value: Any, name: str, *, bytes_limit: int, depth_limit: int) -> None:
    """Refuse a JSON value that is nested too deeply or too long.

    Raises:
        Refusal: 400.
    """
    if _depth(value, depth_limit) > depth_limit:
        raise invalid(f"{name} is nested deeper than {depth_limit} levels")
    if len(to_json(value).encode()) > bytes_limit:
        raise invalid(f"{name} is longer than {bytes_limit} bytes")


def to_json(value: Any) -> str:
    """Write a value of a request down again; unlike faster writers this one takes any number."""
    return _writer.encode(value)


def _depth(value: Any, limit: int) -> int:
    """Count the levels, at most one more than the limit."""
    depth, level = 0, [value] if isinstance(value, _CONTAINERS) else []
    while level and depth <= limit:
        depth += 1
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [each for values in inner for each in values if isinstance(each, _CONTAINERS)]
    return depth


class _Check:
    """Walks one schema and counts what it meets."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._nodes = 0

    def schema(self, value: Any, name: str, depth: int) -> None:
        if isinstance(value, bool):
            return
        if not isinstance(value, dict):
            raise invalid(f"{_short(name)} must be a schema: an object, true or false")
        self._nodes += 1
        if depth > SCHEMA_DEPTH:
            raise invalid(f"{_short(name)}: schemas are nested deeper than {SCHEMA_DEPTH} levels")
        if self._nodes > SCHEMA_NODES:
            raise invalid(f"a schema may hold at most {SCHEMA_NODES} schemas")
        for keyword, inner in value.items():
            below = f"{name}.{keyword}"
            if keyword in _VALUES:
                _VALUES[keyword](inner, below)
            elif keyword in _SUBSCHEMAS:
                _SUBSCHEMAS[keyword](self, inner, below, depth + 1)

    def sequence(self, value: Any, name: str, depth: int) -> None:
        if not isinstance(value, list) or not value:
            raise invalid(f"{_short(name)} must be a non-empty list of schemas")
        for index, each in enumerate(value):
            self.schema(each, f"{name}[{index}]", depth)

    def items(self, value: Any, name: str, depth: int) -> None:
        if isinstance(value, list):  # before 2020-12
            self.sequence(value, name, depth)
        else:
            self.schema(value, name, depth)

    def mapping(self, value: Any, name: str, depth: int) -> None:
        if not isinstance(value, dict):
            raise invalid(f"{_short(name)} must be an object of schemas")
        for key, each in value.items():
            self.schema(each, f"{name}.{key}", depth)

    def patterns(self, value: Any, name: str, depth: int) -> None:
        self.mapping(value, name, depth)
        for key in value:
            _pattern(key, name)

    def ref(self, value: Any, name: str, _depth: int) -> None:
        if not isinstance(value, str):
            raise invalid(f"{_short(name)} must be a string")
        if value != "#" and not value.startswith("#/"):
            raise invalid(f"{_short(name)} must point into the schema itself, such as '#/$defs/x'")
        if not _resolves(self._root, value):
            raise invalid(f"{_short(name)} points to '{value[:100]}', which does not exist")


def _resolves(root: Any, reference: str) -> bool:
    try:
        return isinstance(target(root, reference), dict | bool)
    except KeyError:
        return False


def _type(value: Any, name: str) -> None:
    kinds = value if isinstance(value, list) else [value]
    if not kinds or [kind for kind in kinds if kind not in _TYPES]:
        raise invalid(f"{_short(name)} must be one or several of {', '.join(_TYPES)}")


def _pattern(value: Any, name: str) -> None:
    if not isinstance(value, str):
        raise invalid(f"{_short(name)} must be a string")
    problem = syntax_error(value)
    if problem:
        raise invalid(f"{_short(name)} is not a valid regular expression: {problem}")


def _strings(value: Any, name: str) -> None:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise invalid(f"{_short(name)} must be a list of strings")


def _enum(value: Any, name: str) -> None:
    if not isinstance(value, list) or not value:
        raise invalid(f"{_short(name)} must be a non-empty list")


def _string(value: Any, name: str) -> None:
    if not isinstance(value, str):
        raise invalid(f"{_short(name)} must be a string")


def _number(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(f"{_short(name)} must be a number")


def _count(value: Any, name: str) -> None:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not is_whole or value < 0:
        raise invalid(f"{_short(name)} must be a whole number from 0")


def _step(value: Any, name: str) -> None:
    _number(value, name)
    if value <= 0:
        raise invalid(f"{_short(name)} must be over 0")


def _limit(value: Any, name: str) -> None:
    if not isinstance(value, bool):  # draft 4 has a flag here
        _number(value, name)


def _short(name: str) -> str:
    return name if len(name) <= 200 else f"{name[:100]}...{name[-80:]}"


_SUBSCHEMAS: Mapping[str, Callable[[_Check, Any, str, int], None]] = {
    "$ref": _Check.ref,
    "items": _Check.items,
    "additionalItems": _Check.schema,
    "additionalProperties": _Check.schema,
    "contains": _Check.schema,
    "else": _Check.schema,
    "if": _Check.schema,
    "not": _Check.schema,
    "propertyNames": _Check.schema,
    "then": _Check.schema,
    "unevaluatedItems": _Check.schema,
    "unevaluatedProperties": _Check.schema,
    "allOf": _Check.sequence,
    "anyOf": _Check.sequence,
    "oneOf": _Check.sequence,
    "prefixItems": _Check.sequence,
    "$defs": _Check.mapping,
    "definitions": _Check.mapping,
    "dependentSchemas": _Check.mapping,
    "properties": _Check.mapping,
    "patternProperties": _Check.patterns,
}
_OF_NAMES = frozenset({"properties", "patternProperties"})
_ENFORCED = _OF_NAMES | {"items", "prefixItems", "additionalItems", "additionalProperties"}
_ENFORCED |= {"allOf", "anyOf", "oneOf"}
_VALUES: Mapping[str, Callable[[Any, str], None]] = {
    "type": _type,
    "enum": _enum,
    "required": _strings,
    "pattern": _pattern,
    "format": _string,
    "minLength": _count,
    "maxLength": _count,
    "minItems": _count,
    "maxItems": _count,
    "minProperties": _count,
    "maxProperties": _count,
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _limit,
    "exclusiveMaximum": _limit,
    "multipleOf": _step,
}
