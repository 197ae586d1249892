"""JSON Schemas of many kinds, and what shows whether a value satisfies one.

Those of ``contract/schemas.json`` are written by hand. The families here differ in one thing each.
"""

import datetime as dt
import functools
import ipaddress
import itertools
import json
import re
import uuid
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema

Schema = dict[str, Any]

_WRITTEN = json.loads((Path(__file__).parent / "contract/schemas.json").read_text("utf-8"))


def held() -> list[Schema]:
    """Schemas that every answer is held to."""
    written = itertools.chain.from_iterable(_WRITTEN["held"].values())
    return [*written, *_sizes(), *_ranges(), *_types(), *_unions(), *_recursions(), *_places()]


def refused() -> list[tuple[Schema, str]]:
    """Schemas that no answer can be held to, or that are none, and what the refusal names."""
    return [
        *((schema, name) for name, schemas in _WRITTEN["refused"].items() for schema in schemas),
        *((place(inner), name) for (inner, name) in _KEYWORDS for place in _PLACES),
    ]


def closed(**properties: Any) -> Schema:
    """An object with these properties, all of them and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _sizes() -> Iterator[Schema]:
    """Of much of one thing."""
    for count in (20, 100, 400):
        yield closed(**{f"p{at}": {"type": "null"} for at in range(count)})
        yield {"type": "object", "properties": {f"p{at}": {"type": "null"} for at in range(count)}}
        yield {"enum": [f"value {at}" for at in range(10 * count)]}
        yield {"enum": list(range(-count, count))}
        yield {"anyOf": [{"const": {"id": at}} for at in range(count)]}
        yield {"type": "array", "items": {"enum": [0, 1]}, "minItems": 3, "maxItems": count}
    for depth in (5, 15, 30):
        inner: Schema = {"type": "boolean"}
        listed: Schema = {"type": "boolean"}
        for _ in range(depth):
            inner = closed(a=inner)
            listed = {"type": "array", "items": listed, "minItems": 1, "maxItems": 1}
        yield inner
        yield listed
    for most in (1, 10, 1000, 100_000, 10_000_000):
        yield {"type": "string", "maxLength": most}
        yield {"type": "string", "pattern": "^[a-z]*$", "maxLength": most}


def _ranges() -> Iterator[Schema]:
    """Of numbers."""
    limits = (-1000, -7.5, -1, 0, 0.001, 3, 99.99, 2**31 - 1, 10**12)
    for low, high in itertools.pairwise(limits):
        yield {"type": "number", "minimum": low, "maximum": high}
        yield {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
        if high - low > 1:
            yield {"type": "integer", "minimum": low, "exclusiveMaximum": high}
    for step in (2, 3, 10, 0.5, 0.1, 0.001):
        yield {"type": "number", "multipleOf": step, "minimum": -50, "maximum": 50}


def _types() -> Iterator[Schema]:
    """Of several types, told apart in three manners."""
    types = ("integer", "boolean", "null", "string", "array")
    for some in itertools.combinations(types, 2):
        yield {"type": list(some), "maxLength": 4, "maxItems": 2, "items": {"type": "null"}}
    for one, other in itertools.combinations(types, 2):
        yield closed(a={"anyOf": [_small(one), _small(other)]})
        yield {"oneOf": [_small(one), _small(other)]}


def _small(kind: str) -> Schema:
    return {"type": kind, "maxLength": 4, "maxItems": 1, "items": {"type": "null"}}


def _unions() -> Iterator[Schema]:
    """Of objects that a property tells apart, as pydantic, zod and serde write them."""
    for count in (2, 3, 8):
        kinds = [closed(kind={"const": f"k{at}"}, x={"type": "null"}) for at in range(count)]
        yield {"oneOf": kinds}
        yield {
            "oneOf": [{"$ref": f"#/$defs/K{at}"} for at in range(count)],
            "discriminator": {"propertyName": "kind"},
            "$defs": {f"K{at}": kind for at, kind in enumerate(kinds)},
        }
        yield {"oneOf": [closed(**{f"K{at}": {"type": "null"}}) for at in range(count)]}
        yield {"type": "array", "items": {"anyOf": kinds}, "maxItems": 2}


def _recursions() -> Iterator[Schema]:
    """Of nodes that hold nodes, which may end in several manners."""
    node: Schema = {"$ref": "#/$defs/Node"}
    value = {"type": "boolean"}
    for name in ("$defs", "definitions"):
        ref = {"$ref": f"#/{name}/Node"}
        yield {name: {"Node": closed(v=value, next={"anyOf": [ref, {"type": "null"}]})}, **ref}
    for holder in (
        closed(v=value, all={"type": "array", "items": node, "maxItems": 2}),
        closed(v=value) | {"properties": {"v": value, "next": node}},
        {"type": "object", "additionalProperties": node, "maxProperties": 1},
        {"type": "array", "items": node, "maxItems": 2},
        {"oneOf": [value, {"type": "array", "items": node, "maxItems": 2}]},
        {"anyOf": [value, closed(negation=node)]},
    ):
        yield {"$defs": {"Node": holder}, **node}
        yield closed(tree=node) | {"$defs": {"Node": holder}}


_PLACES: tuple[Callable[[Schema], Schema], ...] = (
    lambda inner: closed(a=inner),
    lambda inner: {"type": "array", "items": inner, "minItems": 1, "maxItems": 2},
    lambda inner: {"type": "array", "prefixItems": [inner], "items": False, "minItems": 1},
    lambda inner: {"$ref": "#/$defs/X", "$defs": {"X": inner}},
    lambda inner: {"anyOf": [inner, {"type": "null"}]},
    lambda inner: {"allOf": [inner]},
    lambda inner: {"type": "object", "additionalProperties": inner, "maxProperties": 1},
    lambda inner: {
        "type": "object",
        "patternProperties": {"^x": inner},
        "additionalProperties": False,
        "maxProperties": 1,
    },
)
_KEYWORDS: tuple[tuple[Schema, str], ...] = (
    ({"type": "array", "uniqueItems": True}, '"uniqueItems"'),
    ({"type": "array", "contains": {"type": "null"}}, '"contains"'),
    ({"not": {"type": "null"}}, '"not"'),
    ({"if": {"type": "string"}, "then": {"maxLength": 1}}, '"if"'),
    ({"dependentRequired": {"a": ["b"]}}, '"dependentRequired"'),
    ({"type": "object", "unevaluatedProperties": False}, '"unevaluatedProperties"'),
    ({"type": "string", "format": "phone"}, '"format": "phone"'),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, '"oneOf"'),
    ({"type": "string", "pattern": "^(?!a)"}, "looks around"),
    ({"const": 2**53 + 1}, "too long"),
)


def _places() -> Iterator[Schema]:
    """What is enforced at the top is enforced everywhere."""
    for place in _PLACES:
        yield place({"type": "string", "pattern": "^[ab]{2}$"})
        yield place({"type": "string", "format": "date"})
        yield place({"type": "integer", "exclusiveMinimum": 4, "multipleOf": 3, "maximum": 99})


def errors(schema: Schema, value: Any) -> list[str]:
    """Say why a value does not satisfy a schema; formats count, and decimals are exact."""
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    exact = jsonschema.validators.extend(kind, {"multipleOf": _multiple_of})
    found = exact(schema, format_checker=_FORMATS).iter_errors(value)
    return [f"{error.json_path}: {error.message}" for error in found]


def _multiple_of(
    _validator: Any, step: float, value: Any, _schema: Schema
) -> Iterator[jsonschema.ValidationError]:
    """Judge decimals as they are written: to jsonschema, 0.3 is no multiple of 0.1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if (Fraction(str(value)) / Fraction(str(step))).denominator != 1:
        yield jsonschema.ValidationError(f"{value} is not a multiple of {step}")


def _has_zone(time: dt.datetime | dt.time) -> bool:
    return time.tzinfo is not None


_LABEL = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
_SPAN = r"(?=.)(\d+H)?(\d+M)?(\d+S)?"
_OF_STRINGS: dict[str, Callable[[str], object]] = {
    "date": dt.date.fromisoformat,
    "date-time": lambda text: _has_zone(dt.datetime.fromisoformat(text)),
    "time": lambda text: _has_zone(dt.time.fromisoformat(text)),
    "duration": re.compile(rf"P(?=.)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T{_SPAN})?)").fullmatch,
    "email": re.compile(r"[^\s@]+@[^\s@]+").fullmatch,
    "hostname": re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*").fullmatch,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uri": re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S*").fullmatch,
    "uuid": uuid.UUID,
}
_OF_NUMBERS = {"int32": (-(2**31), 2**31), "int64": (-(2**63), 2**63), "uint8": (0, 256)}


def _formats() -> jsonschema.FormatChecker:
    checker = jsonschema.FormatChecker(formats=())
    for name in (*_OF_STRINGS, *_OF_NUMBERS):
        checker.checks(name, raises=ValueError)(functools.partial(_has_format, name))
    return checker


def _has_format(name: str, value: object) -> bool:
    match value:
        case str() if name in _OF_STRINGS:
            return bool(_OF_STRINGS[name](value))
        case int() if name in _OF_NUMBERS:
            least, beyond = _OF_NUMBERS[name]
            return least <= value < beyond
        case _:
            return True


_FORMATS = _formats()
