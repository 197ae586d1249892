"""What no engine can hold a model to, of all that a JSON Schema can say: for edge and worker alike.

Constrained decoding decides token by token what may follow, so that a keyword about a value as a
whole (are its items different?) or about what it is not has no place in it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

ANNOTATIONS: Final = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"$comment"}
)
STRING_FORMATS: Final = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
NUMBER_FORMATS: Final[Mapping[str, tuple[int, int] | None]] = {
    **{f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
    "float": None,
    "double": None,
}
"""OpenAPI's. Least and greatest value; None where every number fits."""


def unenforceable(schema: Mapping[str, Any]) -> str | None:
    """Name what a schema asks for and no answer can be held to; None if there is nothing.

    A keyword that changes nothing, such as ``"uniqueItems": false``, is no reason to refuse.

    Args:
        schema: one schema, of any values; the schemas within it are not looked at.
    """
    for keyword, matters in _MATTERS.items():
        if keyword in schema and matters(schema[keyword], schema):
            return f'"{keyword}"'
    if "format" not in schema or not may_be(schema, "string"):
        return None
    wanted = schema["format"]
    known = STRING_FORMATS if "type" in schema else STRING_FORMATS | NUMBER_FORMATS.keys()
    if isinstance(wanted, str) and wanted in known:
        return None
    return f'"format": "{str(wanted)[:40]}"'


def target(root: Any, reference: str) -> Any:
    """Return what a "$ref" such as ``#/$defs/x`` means: a JSON pointer in a fragment.

    Raises:
        KeyError: it points to nothing.
    """
    value = root
    for step in unquote(reference).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and _INDEX.fullmatch(key) and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict):
            value = value[key]
        else:
            raise KeyError(key)
    return value


def may_be(schema: Mapping[str, Any], *types: str) -> bool:
    """Tell whether the ``type`` of a schema allows a value of one of these types."""
    own = schema.get("type")
    allowed = [own] if isinstance(own, str) else own
    return not isinstance(allowed, list) or any(each in types for each in allowed)


def is_anything(schema: Any) -> bool:
    """Tell whether a schema allows everything."""
    return schema is True or (isinstance(schema, dict) and schema.keys() <= ANNOTATIONS)


def _always(_value: Any, _schema: Mapping[str, Any]) -> bool:
    return True


def _restricts(value: Any, _schema: Mapping[str, Any]) -> bool:
    return not is_anything(value)


def _depends(value: Any, _schema: Mapping[str, Any]) -> bool:
    if not isinstance(value, dict):
        return True
    return not all(each == [] or is_anything(each) for each in value.values())


def _has_consequence(_value: Any, schema: Mapping[str, Any]) -> bool:
    return not all(is_anything(schema.get(keyword, True)) for keyword in ("then", "else"))


def _is_about_more_than_text(value: Any, _schema: Mapping[str, Any]) -> bool:
    return isinstance(value, dict) and not value.keys() <= _OF_NAMES


# Of RFC 6901. No list in a schema is longer, and int() takes no text of any length.
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_OF_NAMES = ANNOTATIONS | {"type", "enum", "const", "pattern", "minLength", "maxLength", "$ref"}
_MATTERS: Mapping[str, Callable[[Any, Mapping[str, Any]], bool]] = {
    "uniqueItems": lambda value, _: value is not False,
    "contains": _always,
    "not": lambda value, _: value is not False and not is_anything(value),
    "if": _has_consequence,
    "dependentRequired": _depends,
    "dependentSchemas": _depends,
    "dependencies": _depends,
    "propertyNames": _is_about_more_than_text,
    "unevaluatedItems": _restricts,
    "unevaluatedProperties": _restricts,
    "$dynamicRef": _always,
    "$recursiveRef": _always,
}
"""Whether the value of a keyword, in its schema, asks for anything."""
