"""The keywords of one JSON Schema that hold no schemas, as engines take them."""

from collections.abc import Callable, Mapping
from typing import Any

from fastrun.service.json_schema import NUMBER_FORMATS, may_be
from gpu_worker.engine.grammar import GrammarError
from gpu_worker.engine.json_schema import numbers
from gpu_worker.engine.json_schema.formats import FORMAT_PATTERNS
from gpu_worker.engine.json_schema.patterns import rust_pattern

# More than any answer has, so that it says nothing as an upper bound.
_BEYOND = (1 << 31) - 1
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_FIRST_PRINTABLE = " "


def wrong(keyword: str, wanted: str) -> GrammarError:
    """Return the error of a keyword whose value is not of the kind that is wanted."""
    return GrammarError(f'the "{keyword}" of a JSON Schema has to be {wanted}')


def simple(keyword: str, value: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a keyword without schemas comes to; nothing for one that says nothing.

    Raises:
        GrammarError: it has the wrong shape or cannot be enforced.
    """
    if keyword in _BOUNDS:
        return numbers.bounds(schema)
    read = _READERS.get(keyword)
    return {} if read is None else read(keyword, value)


def of_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that says what "format" says: of strings, or of numbers."""
    wanted = schema["format"]
    limits = NUMBER_FORMATS.get(wanted) if isinstance(wanted, str) else None
    if limits is not None:
        least, most = limits
        types = schema.get("type", "number")
        return numbers.bounds({"type": types, "minimum": least, "maximum": most})
    if not may_be(schema, "string") or wanted in NUMBER_FORMATS:
        return {}
    if wanted in FORMAT_PATTERNS:
        return {"pattern": rust_pattern(FORMAT_PATTERNS[wanted])}
    return {"format": wanted}


def pattern(value: Any, keyword: str) -> str:
    """Return a pattern in the engines' dialect."""
    if not isinstance(value, str):
        raise wrong(keyword, "a regular expression")
    return rust_pattern(value)


def check_properties(schema: Mapping[str, Any]) -> None:
    """Refuse what engines would not hold names of properties to.

    Raises:
        GrammarError: with the reason.
    """
    required = schema.get("required", [])
    names = [*schema.get("properties", ()), *required]
    if any(character < _FIRST_PRINTABLE for name in names for character in name):
        # It can be written in two ways, of which an additional property could take the other.
        raise GrammarError("the JSON Schema has a control character in the name of a property")
    if schema.get("minProperties", 0) > len(required) + 1:
        # A name that is not listed can come twice, and counts once.
        raise GrammarError(
            'the JSON Schema uses "minProperties" for more than one property that is not required, '
            "which cannot be enforced here: require them by name"
        )


def _type(keyword: str, value: Any) -> dict[str, Any]:
    types = value if isinstance(value, list) else [value]
    if not types or not all(each in _TYPES for each in types):
        raise wrong(keyword, f"one or several of {', '.join(_TYPES)}")
    return {keyword: types[0] if len(types) == 1 else list(dict.fromkeys(types))}


def _const(keyword: str, value: Any) -> dict[str, Any]:
    numbers.check_exact(value)
    return {keyword: value}


def _enum(keyword: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, list) or not value:
        raise wrong(keyword, "a list of values")
    return _const(keyword, value)


def _required(keyword: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise wrong(keyword, "a list of names")
    return {keyword: list(dict.fromkeys(value))}


def _count(keyword: str, value: Any) -> dict[str, Any]:
    count = numbers.number(value, keyword)
    if count < 0 or count != int(count):
        raise wrong(keyword, "a whole number from 0")
    is_endless = keyword.startswith("max") and count >= _BEYOND
    return {} if is_endless else {keyword: int(count)}


def _multiple(keyword: str, value: Any) -> dict[str, Any]:
    if numbers.number(value, keyword) <= 0:
        raise wrong(keyword, "over 0")
    return {keyword: value}


_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_READERS: Mapping[str, Callable[[str, Any], dict[str, Any]]] = {
    "type": _type,
    "const": _const,
    "enum": _enum,
    "required": _required,
    "multipleOf": _multiple,
    "pattern": lambda keyword, value: {keyword: pattern(value, keyword)},
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _count),
    **dict.fromkeys(("minProperties", "maxProperties"), _count),
}
