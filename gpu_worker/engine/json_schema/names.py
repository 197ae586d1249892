"""The keyword "propertyNames", said by the keywords that list or match names."""

from collections.abc import Callable, Mapping
from typing import Any

from fastrun.service.json_schema import ANNOTATIONS, is_anything, may_be
from gpu_worker.engine.grammar import GrammarError

_OF_LENGTH = frozenset({"minLength", "maxLength"})
_MAX_REFERENCES = 16  # to one another


def with_named_properties(
    schema: Mapping[str, Any], resolve: Callable[[Any], Any]
) -> Mapping[str, Any]:
    """Return a schema that says the same without "propertyNames".

    Args:
        schema: one that has that keyword.
        resolve: returns what a "$ref" means.

    Raises:
        GrammarError: it cannot be said otherwise.
    """
    names = schema["propertyNames"]
    rest = {keyword: value for keyword, value in schema.items() if keyword != "propertyNames"}
    for _ in range(_MAX_REFERENCES):
        if not isinstance(names, dict) or names.keys() - ANNOTATIONS != {"$ref"}:
            break
        names = resolve(names["$ref"])
    if is_anything(names):
        return rest
    if names is False or (isinstance(names, dict) and not may_be(names, "string")):
        return _with_only(rest, [])
    said = names.keys() - ANNOTATIONS - {"type"} if isinstance(names, dict) else None
    if said == set():
        return rest
    if said in ({"const"}, {"enum"}):
        return _with_only(rest, [names["const"]] if "const" in names else names["enum"])
    is_free = rest.keys().isdisjoint({"properties", "patternProperties"})
    if is_free and said == {"pattern"}:
        return _with_matching(rest, names["pattern"])
    if is_free and said and said <= _OF_LENGTH:
        least, most = names.get("minLength", 0), names.get("maxLength", "")
        return _with_matching(rest, rf"^[\s\S]{{{least},{most}}}$")
    raise GrammarError(
        'the JSON Schema uses a "propertyNames" that cannot be enforced here: list the names in '
        '"properties", or match them in "patternProperties"'
    )


def _with_only(schema: Mapping[str, Any], names: Any) -> Mapping[str, Any]:
    """Allow only these names."""
    known, other = schema.get("properties", {}), schema.get("additionalProperties", True)
    if "patternProperties" in schema or not isinstance(known, dict) or not isinstance(names, list):
        raise GrammarError(
            'the JSON Schema uses "propertyNames" beside "patternProperties": leave one of them out'
        )
    listed = [name for name in names if isinstance(name, str)]
    properties = {name: known.get(name, other) for name in listed}
    return {**schema, "properties": properties, "additionalProperties": False}


def _with_matching(schema: Mapping[str, Any], pattern: str) -> Mapping[str, Any]:
    """Allow only names that match."""
    other = schema.get("additionalProperties", True)
    return {**schema, "patternProperties": {pattern: other}, "additionalProperties": False}
