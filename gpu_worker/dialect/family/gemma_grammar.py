"""The grammar of a call in Gemma's notation, typed by the tool's schema.

Arguments come in the order in which the templates declare them to the model and write them into
histories: sorted, which a model that has seen nothing else keeps to. Where a schema asks for more
than types, lengths, ranges and lists of values, and deep down, a value is written as JSON instead,
which these models know and ``GemmaReader`` reads: no keyword is ignored, and what no grammar of
JSON can be made for is refused by its name when that is compiled.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from gpu_worker.dialect.argument_types import ArgumentType, resolved
from gpu_worker.dialect.family.gemma_reader import (
    BARE_OPENING,
    CLOSING,
    DELIMITER,
    MARKERS,
    OPENING,
)
from gpu_worker.dialect.family.gemma_schema import (
    ANNOTATIONS,
    KNOWN,
    OF_NUMBERS,
    NotNative,
    Schema,
    check,
    count,
    listed,
    meant,
    references,
)
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.grammar import Choice, Free, Grammar, Json, Literal, Repeat, Sequence

_PLACES = 500  # of one schema, references followed, until all of it is written as JSON
_NESTING = 24  # parts of a grammar in one another; an object or a list takes four
_MOST_ITEMS = 1000
_DEFINITIONS = ("$defs", "definitions")
_BARE_KEY = re.compile(r"[\w.$-]+")

_TEXT = Sequence((Literal(DELIMITER), Free(DELIMITER, without=MARKERS)))
_TRUTH = Choice((Literal("true"), Literal("false")))
_NOTHING = Literal("null")
_ANYTHING = Choice((_TEXT, Json('{"type": ["number", "boolean", "null", "object", "array"]}')))

_COMMA, _END_LIST, _END_OBJECT = Literal(","), Literal("]"), Literal("}")
_FIXED: Mapping[str, Grammar] = {"boolean": _TRUTH, "null": _NOTHING, "": _ANYTHING}


def call_grammar(tool: Tool) -> Grammar:
    """Allow one call of a tool."""
    schema = tool.arguments_schema()
    try:
        arguments = _Values(schema).value(schema, _NESTING)
    except _OnlyAsJson:
        arguments = Json(json.dumps(schema, ensure_ascii=False))
    opening = Literal(f"{OPENING}{BARE_OPENING}{tool.name}")
    return Sequence((opening, arguments, Literal(CLOSING)))


class _OnlyAsJson(Exception):  # noqa: N818 - no error: that is done then
    """A schema's values have to be written as JSON as a whole."""


class _Values:
    """The values that one schema allows."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = _PLACES
        self._parts: dict[Grammar, Grammar] = {}  # equal ones, so that they are written once

    def value(self, schema: Any, depth: int, within: frozenset[str] = frozenset()) -> Grammar:
        """Allow a value, in Gemma's notation if that can be.

        Args:
            schema: of the value.
            depth: how far parts may nest.
            within: what has been referred to on the way to it.
        """
        self._left -= 1
        if self._left < 0:
            raise _OnlyAsJson
        try:
            return self._native(schema, depth, within)
        except NotNative:
            return self._json(schema)

    def _native(self, schema: Any, depth: int, within: frozenset[str]) -> Grammar:
        if schema is True or schema == {}:
            return _ANYTHING
        if not isinstance(schema, Mapping) or depth <= 0:
            raise NotNative
        for keyword, follow in (
            ("$ref", self._referred),
            ("allOf", self._single),
            ("anyOf", self._any_of),
            ("oneOf", self._one_of),
        ):
            if keyword in schema:
                check(schema.keys() <= ANNOTATIONS | {keyword})
                return follow(schema[keyword], depth - 1, within)
        if "enum" in schema or "const" in schema:
            return _choice(Literal(_written(value)) for value in listed(schema))
        check(schema.keys() <= KNOWN)
        types = schema.get("type", meant(schema))
        if isinstance(types, list):
            check(types)
            return _choice(
                self.value({**schema, "type": each}, depth - 1, within) for each in types
            )
        if types in ("array", "object"):
            write = self._list if types == "array" else self._object
            return write(schema, depth - 4, within)
        return self._scalar(types, schema)

    def _scalar(self, kind: object, schema: Schema) -> Grammar:
        if kind == "string":
            return self._text(schema)
        if kind in ("number", "integer"):
            ranges = {key: schema[key] for key in sorted(OF_NUMBERS & schema.keys())}
            return self._once(Json(json.dumps({"type": kind, **ranges})))
        check(isinstance(kind, str) and kind in _FIXED)
        return _FIXED[str(kind)]

    def _json(self, schema: Any) -> Grammar:
        """Allow a value as JSON, with the definitions that it refers to."""
        referred = list(references(schema))
        if referred:
            known = {key: self._root[key] for key in _DEFINITIONS if key in self._root}
            if not all(each.startswith(tuple(f"#/{key}/" for key in known)) for each in referred):
                raise _OnlyAsJson
            schema = {**known, **schema}
        return self._once(Json(json.dumps(schema, ensure_ascii=False)))

    def _once(self, part: Grammar) -> Grammar:
        return self._parts.setdefault(part, part)

    def _referred(self, reference: Any, depth: int, within: frozenset[str]) -> Grammar:
        check(isinstance(reference, str) and reference not in within)
        return self._native(resolved(reference, self._root), depth, within | {reference})

    def _single(self, parts: Any, depth: int, within: frozenset[str]) -> Grammar:
        check(isinstance(parts, list) and len(parts) == 1)
        return self._native(parts[0], depth, within)

    def _any_of(self, parts: Any, depth: int, within: frozenset[str]) -> Grammar:
        check(isinstance(parts, list) and parts)
        return _choice(self.value(part, depth, within) for part in parts)

    def _one_of(self, parts: Any, depth: int, within: frozenset[str]) -> Grammar:
        check(isinstance(parts, list) and self._are_apart(parts))
        return self._any_of(parts, depth, within)

    def _are_apart(self, schemas: list[Any]) -> bool:
        """Tell whether every value fits one of the schemas at most, as far as types tell."""
        kinds = [
            frozenset("number" if kind == "integer" else kind for kind in types)
            for types in (ArgumentType(schema, self._root).types for schema in schemas)
        ]
        return all(kinds) and all(
            one.isdisjoint(other) for one, other in itertools.combinations(kinds, 2)
        )

    def _text(self, schema: Schema) -> Grammar:
        least, most = count(schema, "minLength", 0) or 0, count(schema, "maxLength")
        if least == 0 and most is None:
            return _TEXT
        text = Free(DELIMITER, without=MARKERS, least=least, most=most)
        return self._once(Sequence((Literal(DELIMITER), text)))

    def _list(self, schema: Schema, depth: int, within: frozenset[str]) -> Grammar:
        least, most = count(schema, "minItems", 0) or 0, count(schema, "maxItems")
        check(least <= _MOST_ITEMS and (most is None or max(1, least) <= most <= _MOST_ITEMS))
        item = self.value(schema.get("items", True), depth, within)
        more = Repeat(
            Sequence((_COMMA, item)), max(least - 1, 0), None if most is None else most - 1
        )
        filled = Sequence((Literal("["), item, more, _END_LIST))
        return filled if least else Choice((filled, Literal("[]")))

    def _object(self, schema: Schema, depth: int, within: frozenset[str]) -> Grammar:
        declared, required = schema.get("properties", {}), schema.get("required", [])
        others = schema.get("additionalProperties", True)
        check(isinstance(declared, Mapping) and isinstance(required, list))
        check(all(isinstance(name, str) and name in declared for name in required))
        # A model that has to call need not make up names, where any are allowed.
        check(others is False or (declared and (others is True or others == {})))
        check(all(map(_BARE_KEY.fullmatch, declared)))
        allowed = (name for name in declared if declared[name] is not False or name in required)
        names = sorted(allowed, key=str.lower)  # as jinja2's dictsort does
        values = [self.value(declared[name], depth, within) for name in names]
        following = [
            _following(name, value, is_required=name in required)
            for name, value in zip(names, values, strict=True)
        ]
        options: list[Grammar] = []
        for place, name in enumerate(names):
            first = (Literal(f"{{{name}:"), values[place])
            options.append(Sequence((*first, *following[place + 1 :], _END_OBJECT)))
            if name in required:
                return _choice(options)
        return _choice((*options, Literal("{}")))


def _following(name: str, value: Grammar, *, is_required: bool) -> Grammar:
    part = Sequence((Literal(f",{name}:"), value))
    return part if is_required else Repeat(part, 0, 1)


def _written(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    check(not any(marker in value for marker in MARKERS))
    return f"{DELIMITER}{value}{DELIMITER}"


def _choice(options: Iterable[Grammar]) -> Grammar:
    made = tuple(options)
    return made[0] if len(made) == 1 else Choice(made)
