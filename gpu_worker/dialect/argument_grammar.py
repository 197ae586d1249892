"""The grammar of arguments that are written one by one, texts without quotes.

It allows what the tool's schema allows and what is read as that again, texts that contain a marker
left out. What a schema says of a text beside its length, or of all arguments together, cannot be
enforced in this way.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gpu_worker.dialect.argument_types import ArgumentType, quoted, resolved
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.grammar import Choice, Free, Grammar, GrammarError, Json, Literal
from gpu_worker.engine.grammar import Sequence as InTurn

_MAX_NESTING = 16  # of references and alternatives
_STRUCTURES = frozenset({"array", "object"})
_OF_NUMBERS = frozenset(
    {"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"}
)
_OF_STRUCTURES = frozenset(
    {"additionalItems", "additionalProperties", "contains", "dependencies", "dependentRequired"}
    | {"dependentSchemas", "items", "maxContains", "maxItems", "maxProperties", "minContains"}
    | {"minItems", "minProperties", "patternProperties", "prefixItems", "properties"}
    | {"propertyNames", "required", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"}
)
_OF_TEXTS = frozenset({"format", "maxLength", "minLength", "pattern"})
_OF_ALL = frozenset(
    {"$dynamicRef", "$recursiveRef", "$ref", "allOf", "anyOf", "const", "else", "enum", "if"}
    | {"not", "oneOf", "then"}
)
_OF_TYPE = {
    "array": _OF_STRUCTURES,
    "integer": _OF_NUMBERS,
    "number": _OF_NUMBERS,
    "object": _OF_STRUCTURES,
    "string": _OF_TEXTS,
}
_ASSERTIONS = _OF_ALL | _OF_NUMBERS | _OF_STRUCTURES | _OF_TEXTS

Schema = Mapping[str, Any]


class Argument(msgspec.Struct, frozen=True):
    """One argument of a tool."""

    name: str
    is_required: bool
    schema: Any
    root: Schema  # which references look into

    def value(self, until: str, *, without: Sequence[str]) -> Grammar:
        """Allow one value and what ends it.

        Args:
            until: follows the value.
            without: texts that would not be read as part of a text.

        Raises:
            GrammarError: the schema has a keyword that cannot be enforced; names it.
        """
        return _Values(self, until, tuple(without)).grammar()


def arguments(tool: Tool) -> Iterator[Argument]:
    """Yield the arguments that a tool declares or requires, in that order.

    Raises:
        GrammarError: the schema has a keyword that cannot be enforced; names it.
    """
    root = tool.arguments_schema()
    schema: Any = root
    for _ in range(_MAX_NESTING):
        if not isinstance(schema, Mapping):
            raise _refusal("$ref")
        if not isinstance(schema.get("$ref"), str):
            break
        schema = resolved(schema["$ref"], root)
    _refuse(schema, _ASSERTIONS - {"additionalProperties", "properties", "required"})
    declared, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(declared, Mapping) or not isinstance(required, list):
        raise _refusal("properties")
    others = schema.get("additionalProperties", True)
    for name in dict.fromkeys((*declared, *required)):
        if name not in declared and others is False:
            raise GrammarError(
                f'the JSON Schema requires "{name}" and does not allow it: no arguments fit'
            )
        yield Argument(name, name in required, declared.get(name, others), root)


class _Values:
    """The values of one argument."""

    def __init__(self, argument: Argument, until: str, without: tuple[str, ...]) -> None:
        self._root = argument.root
        self._schema = argument.schema
        self._place = ArgumentType(argument.schema, argument.root)
        self._until = until
        self._without = without

    def grammar(self) -> Grammar:
        if not self._place.may_be_text:
            return self._json(self._schema)
        schemas = list(self._alternatives(self._schema, _MAX_NESTING))
        texts = [schema for schema in schemas if _is_text(schema)]
        words = [schema["const"] for schema in schemas if isinstance(schema.get("const"), str)]
        others = [
            schema for schema in schemas if not (_is_text(schema) or schema.get("const") in words)
        ]
        if texts:
            # What looks like a number is read as one where one is allowed.
            for schema in others:
                if not self._is_structure(schema):
                    _refuse(schema, _ASSERTIONS)
            others = [schema for schema in others if self._is_structure(schema)]
        options = [
            *map(self._word, words),
            *(self._text(schema, not_first="[{" if others else "") for schema in texts),
            *map(self._json, others),
        ]
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _alternatives(self, schema: Any, depth: int) -> Iterator[Schema]:
        """Yield schemas of a single kind each, which together are the schema."""
        if not isinstance(schema, Mapping):
            yield {}
        elif not ArgumentType(schema, self._root).may_be_text:
            yield schema
        elif keyword := _combining(schema):
            if depth == 0 or (keyword == "oneOf" and not self._are_apart(schema["oneOf"])):
                raise _refusal(keyword)
            _refuse(schema, (_ASSERTIONS | {"type"}) - {keyword})
            for part in self._combined(schema[keyword]):
                yield from self._alternatives(part, depth - 1)
        elif "const" in schema or "enum" in schema:
            _refuse(schema, _ASSERTIONS - {"const", "enum"})
            values = [schema["const"]] if "const" in schema else schema["enum"]
            if not isinstance(values, list):
                raise _refusal("enum")
            yield from ({"const": value} for value in values)
        elif isinstance(schema.get("type"), list):
            yield from (_of_type(schema, each) for each in schema["type"] if isinstance(each, str))
        else:
            yield schema

    def _combined(self, parts: Any) -> Sequence[Any]:
        return [resolved(parts, self._root)] if isinstance(parts, str) else list(parts)

    def _are_apart(self, schemas: Sequence[Any]) -> bool:
        """Tell whether every value fits one of the schemas at most."""
        types = [ArgumentType(schema, self._root).types for schema in schemas]
        return all(types) and all(
            one.isdisjoint(other) for one, other in itertools.combinations(types, 2)
        )

    def _is_structure(self, schema: Schema) -> bool:
        types = ArgumentType(schema, self._root).types
        return bool(types) and types <= _STRUCTURES

    def _word(self, word: str) -> Grammar:
        is_read = self._place.as_json(word) == quoted(word)
        if not is_read or any(marker in word for marker in self._without):
            raise _refusal("enum")
        return Literal(word + self._until)

    def _text(self, schema: Schema, *, not_first: str) -> Grammar:
        _refuse(schema, (_OF_TEXTS - {"maxLength", "minLength"}) | _OF_ALL)
        if "type" not in schema:
            _refuse(schema, _ASSERTIONS)
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if not isinstance(least, int) or not isinstance(most, int | None):
            raise _refusal("maxLength" if isinstance(least, int) else "minLength")
        return Free(self._until, without=self._without, not_first=not_first, least=least, most=most)

    def _json(self, schema: Schema) -> Grammar:
        text = json.dumps(schema)
        if '"$ref"' in text:
            known = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
            text = json.dumps({**known, **schema})
        return InTurn((Json(text), Literal(self._until)))


def _of_type(schema: Schema, name: str) -> Schema:
    """Return what a schema says of the values of one type."""
    matters = _OF_ALL | _OF_TYPE.get(name, frozenset())
    kept = {key: value for key, value in schema.items() if key in matters or key not in _ASSERTIONS}
    return {**kept, "type": name}


def _is_text(schema: Schema) -> bool:
    return "const" not in schema and schema.get("type", "string") == "string"


def _combining(schema: Schema) -> str | None:
    """Return the keyword by which a schema is nothing but what it lists or refers to."""
    if isinstance(schema.get("$ref"), str):
        return "$ref"
    for keyword in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(keyword)
        if isinstance(parts, list) and (keyword != "allOf" or len(parts) == 1):
            return keyword
    return None


def _refuse(schema: Schema, keywords: frozenset[str]) -> None:
    for keyword in sorted(keywords & schema.keys()):
        raise _refusal(keyword)


def _refusal(keyword: str) -> GrammarError:
    return GrammarError(
        f'the JSON Schema uses "{keyword}" in a way that cannot be enforced here: leave it out'
    )
