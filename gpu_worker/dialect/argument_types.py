"""What type an argument has that a model writes without quotes: the tool's schema decides.

Families whose markup is not JSON print ``Oslo``, ``3`` and ``true`` alike. A postcode ``01234``
stays a text where the schema says so, and becomes one where no number is written like that.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpu_worker.dialect.tools import Tool

ANY: frozenset[str] = frozenset()
_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_NULLS = frozenset({"null", "none", "nil"})
_BOOLEANS = frozenset({"true", "false"})
_NUMBER_BEGUN = re.compile(r"-?\d*\.?\d*(?:[eE][+-]?\d*)?")
_REFERENCES = 16  # followed one after the other, at most


class ArgumentType:
    """One place in the schema of a tool's arguments."""

    def __init__(self, schema: Any, root: Any) -> None:
        """Point at a place.

        Args:
            schema: what stands there; anything that is no schema allows everything.
            root: the whole schema, which references look into.
        """
        self._root = root
        self._schemas = [each for each in _alternatives(schema, root) if isinstance(each, Mapping)]
        self.types = ANY if len(self._schemas) == 0 else _types(self._schemas)

    @classmethod
    def of(cls, tool: Tool) -> "ArgumentType":
        """Return the place of all arguments of a tool."""
        return cls(tool.parameters or {}, tool.parameters or {})

    @property
    def is_text(self) -> bool:
        """Only a text is allowed, so that it can be passed on as it comes."""
        return self.types == {"string"}

    @property
    def may_be_text(self) -> bool:
        """A text is allowed, maybe besides others."""
        return self._may_be("string")

    @property
    def names(self) -> frozenset[str]:
        """The properties that are declared."""
        found = (schema.get("properties") for schema in self._schemas)
        return frozenset(name for each in found if isinstance(each, Mapping) for name in each)

    def at(self, name: str) -> "ArgumentType":
        """Return the place of a property."""
        found = [
            schema["properties"][name]
            for schema in self._schemas
            if isinstance(schema.get("properties"), Mapping) and name in schema["properties"]
        ] or [schema.get("additionalProperties") for schema in self._schemas]
        return ArgumentType({"anyOf": found}, self._root)

    def element(self) -> "ArgumentType":
        """Return the place of the elements of a list."""
        found = [schema.get("items") for schema in self._schemas]
        return ArgumentType({"anyOf": found}, self._root)

    def as_json(self, text: str) -> str:
        """Return the JSON of a value that stands without quotes."""
        if self.is_text:
            return quoted(text)
        return self._value(text.strip()) or quoted(text)

    def is_surely_text(self, begun: str) -> bool:
        """Tell whether a value that begins like this is a text, whatever follows.

        Then it can be passed on as it comes, as the JSON of a text.
        """
        bare = begun.strip().lower()
        if self.is_text or not bare:
            return self.is_text
        if bare[0] in "{[":
            return not self._may_be("object", "array")
        return not (
            (_NUMBER_BEGUN.fullmatch(bare) and self._may_be("number", "integer"))
            or (_begins(bare, _BOOLEANS) and self._may_be("boolean"))
            or (_begins(bare, _NULLS) and self._may_be("null", unless="string"))
        )

    def _value(self, bare: str) -> str | None:
        """Return JSON that is no text; None if only a text can be meant."""
        if bare.lower() in _NULLS and self._may_be("null", unless="string"):
            return "null"
        if bare.lower() in _BOOLEANS and self._may_be("boolean"):
            return bare.lower()
        if _is_json(bare, int | float) and self._may_be_number(bare):
            return bare
        if bare[:1] in ("{", "[") and self._may_be("object", "array"):
            return bare if _is_json(bare, dict | list) else _from_python(bare)
        return None

    def _may_be_number(self, bare: str) -> bool:
        if self._may_be("number") or not self._may_be("integer"):
            return self._may_be("number")
        return "string" not in self.types or float(bare).is_integer()

    def _may_be(self, *types: str, unless: str = "") -> bool:
        if self.types.isdisjoint(types):
            return not self.types or bool(unless and unless not in self.types)
        return True


def quoted(text: str) -> str:
    """Return a text as JSON."""
    return json.dumps(text, ensure_ascii=False)


def _begins(text: str, words: frozenset[str]) -> bool:
    return any(word.startswith(text) for word in words)


def _alternatives(schema: Any, root: Any, depth: int = _REFERENCES) -> Iterator[Any]:
    """Yield what a schema is made of, references resolved; None for what is not known."""
    if not isinstance(schema, Mapping) or depth == 0:
        yield None
        return
    reference = schema.get("$ref")
    if isinstance(reference, str):
        yield from _alternatives(resolved(reference, root), root, depth - 1)
        return
    parts = [
        part
        for keyword in ("anyOf", "oneOf", "allOf")
        if isinstance(schema.get(keyword), list)
        for part in schema[keyword]
    ]
    for part in parts:
        yield from _alternatives(part, root, depth - 1)
    if not parts or schema.keys() & {"type", "enum", "const", "properties", "items"}:
        yield schema


def resolved(reference: str, root: Any) -> Any:
    """Return what a reference within a schema refers to; None if that is nowhere."""
    place = root
    for step in reference.removeprefix("#").split("/")[1:]:
        if not isinstance(place, Mapping):
            return None
        place = place.get(step.replace("~1", "/").replace("~0", "~"))
    return place if reference.startswith("#") else None


def _types(schemas: list[Mapping[str, Any]]) -> frozenset[str]:
    """Return the types that some of the schemas allow; ``ANY`` if one says nothing."""
    found: set[str] = set()
    for schema in schemas:
        declared = schema.get("type")
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(declared, str):
            found.add(declared)
        elif isinstance(declared, list):
            found.update(each for each in declared if isinstance(each, str))
        elif isinstance(values, list):
            found.update(map(_type_of, values))
        elif isinstance(schema.get("properties"), Mapping):
            found.add("object")
        else:
            return ANY
    return frozenset(found & _TYPES)


def _type_of(value: Any) -> str:
    for kind, name in (
        (bool, "boolean"),
        (int | float, "number"),
        (str, "string"),
        (Mapping, "object"),
        (list, "array"),
    ):
        if isinstance(value, kind):
            return name
    return "null"


def _is_json(text: str, kind: Any) -> bool:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, kind) and not isinstance(value, bool)


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _from_python(text: str) -> str | None:
    """Return the JSON of what is written as Python prints it, which histories teach some models."""
    try:
        written = json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
        written.encode()  # half a character could not be sent
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return written
