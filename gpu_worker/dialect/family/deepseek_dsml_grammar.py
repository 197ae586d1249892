"""The grammar of a DSML call, each argument of which is a text as it is, or JSON.

The tag before a value tells which, so that every schema can be enforced: a text of which more than
its length is asked is allowed as JSON.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gpu_worker.dialect.argument_grammar import Argument, arguments
from gpu_worker.dialect.argument_types import resolved
from gpu_worker.dialect.family.deepseek_dsml_arguments import IS_JSON, IS_TEXT
from gpu_worker.dialect.family.deepseek_dsml_reader import (
    DSML,
    INVOKE,
    INVOKE_END,
    NAME,
    OPENING,
    PARAMETER,
    PARAMETER_END,
)
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.grammar import Choice, Free, Grammar, GrammarError, Json, Literal, Repeat
from gpu_worker.engine.grammar import Sequence as InTurn

_IS_TEXT, _IS_JSON = IS_TEXT[1:], IS_JSON[1:]  # without the quote that ends the name
_MAX_NESTING = 16  # of references and alternatives
_NO_TEXT = ("number", "boolean", "object", "array", "null")
_SAYS_NOTHING = frozenset(
    {"$comment", "default", "deprecated", "description", "examples", "readOnly", "title"}
    | {"writeOnly"}
)


def call_grammar(tool: Tool) -> Grammar:
    """Allow one call: each argument on a line, in the order in which they are declared.

    Raises:
        GrammarError: the schema has a keyword that cannot be enforced; names it.
    """
    lines = [_line(argument) for argument in arguments(tool)] or [_undeclared(tool)]
    head, end = Literal(f'{OPENING}{INVOKE}{tool.name}">\n'), Literal(f"{INVOKE_END}\n")
    return InTurn((head, *lines, end))


def _line(argument: Argument) -> Grammar:
    if not NAME.fullmatch(argument.name):
        raise GrammarError("a property has a name that cannot be written here: rename it")
    options = tuple(_values(argument.schema, argument.root, _MAX_NESTING))
    tag = Literal(f'{OPENING}{PARAMETER}{argument.name}"')
    line = InTurn((tag, options[0] if len(options) == 1 else Choice(options)))
    return line if argument.is_required else Repeat(line, 0, 1)


def _undeclared(tool: Tool) -> Grammar:
    """Allow what a tool takes that declares no arguments: none, or any."""
    schema = tool.arguments_schema()
    others = schema.get("additionalProperties", True)
    if others is False:
        return Literal("\n")  # the encoding leaves an empty line
    name = InTurn((Literal(OPENING + PARAMETER), Free('"', without=("<", ">", "\n"), least=1)))
    options = tuple(_values(others, schema, _MAX_NESTING))
    return Repeat(InTurn((name, Choice(options))), 0, None)


def _values(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[Grammar]:
    """Yield what a value may be, with the rest of the tag before it and the tag after it."""
    said = set(schema) - _SAYS_NOTHING if isinstance(schema, Mapping) else set()
    if schema is False:
        yield _json(schema, root)
    elif not said:
        yield _text({})
        yield _json({"type": _NO_TEXT}, root)
    elif depth and said == {"$ref"}:
        yield from _values(resolved(schema["$ref"], root), root, depth - 1)
    elif depth and said == {"anyOf"}:
        for part in schema["anyOf"]:
            yield from _values(part, root, depth - 1)
    elif said == {"type"} and isinstance(schema["type"], list):
        for kind in schema["type"]:
            yield from _values({"type": kind}, root, depth)
    elif schema.get("type") == "string" and said <= {"type", "minLength", "maxLength"}:
        yield _text(schema)
    elif schema.get("type", "string") == "string" and said <= {"type", "enum"}:
        yield from _words(schema["enum"], root)
    else:
        yield _json(schema, root)


def _text(schema: Mapping[str, Any]) -> Grammar:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if not isinstance(least, int) or not isinstance(most, int | None):
        return _json(schema, schema)  # which says what is wrong with it
    text = Free(f"{PARAMETER_END}\n", without=(DSML,), least=least, most=most)
    return InTurn((Literal(_IS_TEXT), text))


def _words(values: Any, root: Mapping[str, Any]) -> Iterator[Grammar]:
    """Yield each text of an enum, and the other values together."""
    words = [each for each in values if isinstance(each, str) and DSML not in each]
    for word in words:
        yield Literal(f"{_IS_TEXT}{word}{PARAMETER_END}\n")
    others = [each for each in values if each not in words]
    if others or not words:
        yield _json({"enum": others}, root)


def _json(schema: Any, root: Mapping[str, Any]) -> Grammar:
    if isinstance(schema, Mapping):
        known = {key: root[key] for key in ("$defs", "definitions") if key in root}
        schema = {**known, **schema}
    text = json.dumps(schema, ensure_ascii=False)
    return InTurn((Literal(_IS_JSON), Json(text), Literal(f"{PARAMETER_END}\n")))
