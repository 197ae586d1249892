"""The page of the API, made from the OpenAPI document that an edge serves."""

from collections.abc import Iterator
from typing import Any

from markdown_text import code, prose, table

from edge import schema_words
from edge.openapi import openapi
from edge.samples import samples

Json = dict[str, Any]

_HEAD = """\
# API

Made from the document that a running server gives at `/openapi.json` and, for people, at `/docs`.
The [guides](../guides/README.md) tell how to use it well.

Every path is below `/v1`, and wants `Authorization: Bearer` with a key.
"""
_ENVELOPE = '{"error": {"message": "...", "type": "...", "code": 400}}'


def render(version: str) -> str:
    """Make the page.

    Args:
        version: of fastrun.
    """
    document = openapi(version)
    operations = [
        _operation(document, f"{method.upper()} /v1{path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return "\n".join(
        [_HEAD, *operations, _errors(document), _headers(document), _objects(document)]
    )


def _operation(document: Json, route: str, operation: Json) -> str:
    parts = [f"## {operation['summary']}\n", f"`{route}`\n", prose(operation["description"]) + "\n"]
    asked = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    if asked:
        schema = document["components"]["schemas"][schema_words.name_of(asked["schema"])]
        parts += ["**Request**\n", _fields(schema)]
    if parameters := operation.get("parameters"):
        rows = [(f"`{each['name']}`", each["in"]) for each in parameters]
        parts.append(table(("parameter", "in"), rows))
    parts += ["**Answer**\n", _answers(operation)]
    example = asked["examples"]["basic"]["value"] if asked else None
    for language, text in samples(operation["operationId"], example).items():
        parts.append(code("sh" if language == "curl" else language.lower(), text))
    return "\n".join(parts)


def _answers(operation: Json) -> str:
    found = operation["responses"]["200"]["content"]
    rows = [("200", f"{_type(each['schema'])} as `{kind}`") for kind, each in found.items()]
    others = ", ".join(status for status in operation["responses"] if status != "200")
    return table(("status", "answer"), [*rows, (others, "[an error](#errors)")])


def _errors(document: Json) -> str:
    rows = []
    for status, response in document["components"]["responses"].items():
        kind = response["content"]["application/json"]["example"]["error"]["type"]
        again = "`Retry-After`" if "Retry-After" in response["headers"] else ""
        rows.append((status, f"`{kind}`", prose(response["description"]), again))
    about = f"Every refusal and failure is one object: `{_ENVELOPE}`\n"
    return "\n".join(["## Errors\n", about, table(("status", "type", "meaning", "with"), rows)])


def _headers(document: Json) -> str:
    headers = document["components"]["headers"].items()
    rows = [(f"`{name.lower()}`", prose(each["description"])) for name, each in headers]
    return "\n".join(["## Headers of answers\n", table(("header", "meaning"), rows)])


def _objects(document: Json) -> str:
    schemas = sorted(document["components"]["schemas"].items())
    return "\n".join(["## Objects\n", *_each_object(schemas)])


def _each_object(schemas: list[tuple[str, Json]]) -> Iterator[str]:
    for name, schema in schemas:
        # What is asked for stands with its operation.
        if name not in ("ChatCompletionRequest", "CompletionRequest"):
            yield f"### {name}\n"
            yield prose(schema.get("description", "")) + "\n"
            yield _fields(schema)


def _fields(schema: Json) -> str:
    required = set(schema.get("required", ()))
    rows = [
        (
            f"`{name}`" + (" (required)" if name in required else ""),
            _type(field),
            prose(field.get("description", "")),
        )
        for name, field in schema["properties"].items()
    ]
    return table(("field", "type", "meaning"), rows)


def _type(schema: Json) -> str:
    return schema_words.type_of(
        schema,
        code=lambda value: f"`{value}`",
        link=lambda name: f"[{name}](#{name.lower()})",
    )
