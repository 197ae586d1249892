"""Tools as Gemma's templates can declare them: with one type at each place.

The templates write types, texts to choose from, fields and elements, and leave out without a word
what else a schema says, such as ``anyOf`` and ``$ref``. What can be said in their terms is said so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_worker.dialect.argument_types import resolved
from gpu_worker.dialect.tools import Tool

Schema = Mapping[str, Any]

_NESTING = 12
_PLACES = 1000  # references can make more of a schema than is written there
_UNIONS = ("anyOf", "oneOf")
_MADE_OF = ("$ref", "allOf", *_UNIONS)


def declaration(tool: Tool) -> dict[str, Any]:
    """Return a tool as the templates take it."""
    value = tool.as_template_value()
    function = value["function"]
    shown = _Places(function["parameters"]).shown(function["parameters"])
    # Without a type the templates leave a bracket open.
    function["parameters"] = {**shown, "type": "object"}
    return value


class _Places:
    """The places of one schema, in the templates' terms."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = _PLACES

    def shown(
        self, schema: Any, depth: int = _NESTING, within: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """Return what stands at a place; no more than its type where it stands within itself.

        Args:
            schema: at that place.
            depth: how much further down to look.
            within: what has been referred to on the way to it.
        """
        followed = set(within)
        made = _with_one_type(self._merged(schema, depth, followed))
        if isinstance(made.get("properties"), Mapping):
            made["properties"] = {
                name: self.shown(inner, depth - 1, frozenset(followed))
                for name, inner in made["properties"].items()
            }
        if "items" in made:
            made["items"] = self.shown(made["items"], depth - 1, frozenset(followed))
        return made

    def _merged(self, schema: Any, depth: int, followed: set[str]) -> dict[str, Any]:
        """Return a schema and what it refers to and is made of; of several, the first."""
        self._left -= 1
        if not isinstance(schema, Mapping) or depth <= 0 or self._left < 0:
            return {}
        own = {key: value for key, value in schema.items() if key not in _MADE_OF}
        parts: list[Any] = [*_listed(schema, "allOf")]
        reference = schema.get("$ref")
        if isinstance(reference, str):
            parts.append(self._referred(reference, followed))
        made: dict[str, Any] = {}
        for part in parts:
            made |= self._merged(part, depth - 1, followed)
        for union in _UNIONS:
            options = _listed(schema, union)
            made |= _united([self._merged(each, depth - 1, followed) for each in options])
        return made | own

    def _referred(self, reference: str, followed: set[str]) -> Any:
        found = resolved(reference, self._root)
        if reference in followed:
            return {"type": found["type"]} if isinstance(found, Mapping) and "type" in found else {}
        followed.add(reference)
        return found


def _united(options: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the first of several alternatives, and that it may be null if one is."""
    others = [option for option in options if option.get("type") != "null"]
    first = dict(others[0]) if others else {}
    if others and all(map(_values, others)):
        first["enum"] = [value for option in others for value in _values(option)]
        first.pop("const", None)
    return {**first, "nullable": True} if len(others) < len(options) else first


def _with_one_type(schema: Schema) -> dict[str, Any]:
    """Return a schema with one type, and the texts to choose from among its values."""
    made = {key: value for key, value in schema.items() if key != "const"}
    types, values = schema.get("type"), _values(schema)
    declared = [types] if isinstance(types, str) else _listed(schema, "type")
    if not declared and values and all(isinstance(value, str | None) for value in values):
        declared = ["string"]
    if values:
        made["enum"] = [value for value in values if value is not None]
    named = [each for each in declared if each != "null"]
    if None in values or len(named) < len(declared) > 1:
        made["nullable"] = True
    return {**made, "type": str((named or declared)[0])} if declared else made


def _values(schema: Schema) -> Sequence[Any]:
    return [schema["const"]] if "const" in schema else _listed(schema, "enum")


def _listed(schema: Schema, keyword: str) -> Sequence[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else ()
