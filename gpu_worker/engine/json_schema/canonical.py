"""A JSON Schema in few keywords, each of which an engine enforces as it stands.

Clients write schemas in many manners: of every draft since the fourth, with references anywhere,
with keywords that say nothing. Engines know some of them, and ignore others without a word. So what
reaches an engine is written anew, from what is known to be enforced and nothing else.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from fastrun.service.json_schema import target, unenforceable
from gpu_worker.engine.grammar import GrammarError
from gpu_worker.engine.json_schema import numbers
from gpu_worker.engine.json_schema.disjoint import Disjointness
from gpu_worker.engine.json_schema.endless import is_endless
from gpu_worker.engine.json_schema.keywords import (
    check_properties,
    of_format,
    pattern,
    simple,
    wrong,
)
from gpu_worker.engine.json_schema.names import with_named_properties

MAX_NESTING: Final = 100  # of JSON in a schema; the library itself ends at 128
MAX_SCHEMAS: Final = 20_000  # within one another, as they are written

Schema = dict[str, Any] | bool

_DEFINITIONS = "#/$defs/"


def canonical(text: str) -> Schema:
    """Write a schema anew.

    Args:
        text: a JSON Schema, as JSON.

    Raises:
        GrammarError: it is none, or asks for what cannot be enforced.
    """
    try:
        root = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise GrammarError("the JSON Schema is not JSON, or nested too deeply") from error
    _check_nesting(root)
    document = _Document(root).written()
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise GrammarError("the JSON Schema holds half a character: a lone surrogate") from error
    if isinstance(document, dict) and is_endless(document):
        raise GrammarError("the JSON Schema allows no value that ends: give its recursion an end")
    return document


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _check_nesting(root: Any) -> None:
    level = [root]
    for _ in range(MAX_NESTING):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise GrammarError(f"the JSON Schema is nested more than {MAX_NESTING} levels deep")


class _Document:
    """A schema with all that it refers to."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._names: dict[str, str] = {}  # of definitions, by the references to them
        self._pending: list[tuple[str, Any]] = []
        self._definitions: dict[str, Schema] = {}
        self._steps: list[numbers.Number] = []
        self._with_one_of: list[dict[str, Any]] = []
        self._has_own_base = False  # of references, within the root
        self._left = MAX_SCHEMAS

    def written(self) -> Schema:
        document = self._schema(self._root)
        while self._pending:
            name, schema = self._pending.pop()
            self._definitions[name] = self._schema(schema)
        if self._names and self._has_own_base:
            raise GrammarError(
                'the JSON Schema uses "$id" within a schema that has references: leave it out'
            )
        numbers.check_steps(self._steps, repeated=bool(self._names))
        self._settle_one_of()
        if isinstance(document, dict) and self._definitions:
            document["$defs"] = self._definitions
        return document

    def _settle_one_of(self) -> None:
        """Where only one alternative can fit anyway, say "anyOf", which engines know better."""
        compared = Disjointness(lambda ref: self._definitions[ref.removeprefix(_DEFINITIONS)])
        for schema in self._with_one_of:
            if compared.of_all(schema["oneOf"]):
                items = list(schema.items())
                schema.clear()
                schema.update(("anyOf" if key == "oneOf" else key, each) for key, each in items)

    def _schema(self, schema: Any) -> Schema:
        self._left -= 1
        if self._left < 0:
            raise GrammarError(f"the JSON Schema holds more than {MAX_SCHEMAS} schemas")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise GrammarError("the JSON Schema has something else in place of a schema")
        if reason := unenforceable(schema):
            raise GrammarError(
                f"the JSON Schema uses {reason}, which cannot be enforced here: leave it out"
            )
        if schema.get("not", False) is not False:
            return False  # it is "not" anything: of others we have just been told
        if schema is not self._root and not str(schema.get("$id", "#")).startswith("#"):
            self._has_own_base = True
        if "propertyNames" in schema:
            schema = with_named_properties(schema, self._target)
        return self._rewritten(schema)

    def _rewritten(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        written: dict[str, Any] = {}
        also: list[dict[str, Any]] = []  # what has its keywords in use already
        for keyword, value in schema.items():
            match keyword:
                case "oneOf":
                    place = {} if "anyOf" in schema else written
                    place["oneOf"] = self._schemas(value, keyword)
                    self._with_one_of.append(place)
                    also += [place] if place is not written else []
                case "format":
                    also.append(of_format(schema))
                case _:
                    written |= self._keyword(keyword, value, schema)
        if "multipleOf" in written:
            self._steps.append(written["multipleOf"])
        check_properties(written)
        also = [each for each in also if each]
        if also:
            written["allOf"] = [*written.get("allOf", ()), *also]
        return written

    def _keyword(self, keyword: str, value: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
        written: dict[str, Any]
        match keyword:
            case "$ref":
                written = {keyword: self._reference(value)}
            case "anyOf" | "allOf" | "prefixItems":
                written = {keyword: self._schemas(value, keyword)}
            case "items" if isinstance(value, list):
                written = self._listed_items(value, schema)
            case "items" | "additionalProperties":
                written = {keyword: self._schema(value)}
            case "properties":
                written = {keyword: self._mapped(value, keyword)}
            case "patternProperties":
                written = {keyword: self._matched(value, keyword)}
            case _:
                written = simple(keyword, value, schema)
        return written

    def _listed_items(self, value: list[Any], schema: Mapping[str, Any]) -> dict[str, Any]:
        """Write what "items" and "additionalItems" meant before 2020-12."""
        if "prefixItems" in schema:
            raise wrong("items", 'a schema where there are "prefixItems"')
        rest = self._schema(schema.get("additionalItems", True))
        return {"prefixItems": self._schemas(value, "items"), "items": rest}

    def _schemas(self, value: Any, keyword: str) -> list[Schema]:
        if not isinstance(value, list) or not value:
            raise wrong(keyword, "a list of schemas")
        return [self._schema(each) for each in value]

    def _mapped(self, value: Any, keyword: str) -> dict[str, Schema]:
        if not isinstance(value, dict):
            raise wrong(keyword, "an object of schemas")
        return {name: self._schema(each) for name, each in value.items()}

    def _matched(self, value: Any, keyword: str) -> dict[str, Schema]:
        mapped = self._mapped(value, keyword)
        matched = {pattern(name, keyword): each for name, each in mapped.items()}
        if len(matched) < len(mapped):
            raise wrong(keyword, "an object without two patterns that mean the same")
        return matched

    def _reference(self, value: Any) -> str:
        """Have what is referred to written, once, and return the new reference to it."""
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
            raise GrammarError(
                f"the JSON Schema refers to {str(value)[:100]!r}, which must point into it, as "
                "'#/$defs/x' does"
            )
        if value not in self._names:
            # Only words, so that no message can look as if it were ours.
            word = re.sub(r"\W+", "_", value.rpartition("/")[2])[:40]
            self._names[value] = f"{word}_{len(self._names)}"
            self._pending.append((self._names[value], self._target(value)))
        return _DEFINITIONS + self._names[value]

    def _target(self, reference: Any) -> Any:
        try:
            return target(self._root, str(reference))
        except KeyError:
            raise GrammarError(
                f"the JSON Schema refers to {str(reference)[:100]!r}, which is not in it"
            ) from None
