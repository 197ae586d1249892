"""The reference page: the OpenAPI document for people, in one file that needs nothing else."""

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Any

from edge import schema_words
from edge.samples import BASE_URL, samples

Json = dict[str, Any]

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>fastrun API reference</title>
<style>
{css}</style>
</head>
<body>
<h1>fastrun API reference</h1>
<p>{about}</p>
<p>Base URL: <code class="base-url">{base_url}</code> · version {version} ·
<a href="/openapi.json">openapi.json</a> · <a href="/openapi.yaml">openapi.yaml</a></p>
<nav>{links}</nav>
{operations}
<h2 id="errors">Errors</h2>
<p>Every refusal and failure is one object: <code>{envelope}</code></p>
{errors}
<h2 id="objects">Objects</h2>
{objects}
<script>
{script}</script>
</body>
</html>
"""
_METHODS = {"post": "POST", "get": "GET"}
_ENVELOPE = '{"error": {"message": "...", "type": "...", "code": 400}}'


def reference_page(document: Json) -> bytes:
    """Render the page.

    Args:
        document: as edge.openapi makes it.
    """
    schemas = document["components"]["schemas"]
    operations = list(_operations(document))
    links = [(operation["operationId"], operation["summary"]) for _, _, operation in operations]
    site = files("edge") / "site"
    return _PAGE.format(
        css=(site / "reference.css").read_text("utf-8"),
        script=(site / "reference.js").read_text("utf-8"),
        about=_prose(document["info"]["description"]),
        base_url=BASE_URL,
        version=escape(document["info"]["version"]),
        links="".join(
            f'<a href="#{anchor}">{escape(words)}</a>'
            for anchor, words in [*links, ("errors", "Errors"), ("objects", "Objects")]
        ),
        operations="".join(_operation(document, *each) for each in operations),
        envelope=escape(_ENVELOPE),
        errors=_errors(document["components"]["responses"]),
        objects="".join(
            _object(name, schema)
            for name, schema in sorted(schemas.items())
            if not name.endswith("Request")
        ),
    ).encode()


def _operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _operation(document: Json, path: str, method: str, operation: Json) -> str:
    asked = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    parts = [
        f'<h2 id="{operation["operationId"]}">{escape(operation["summary"])}</h2>',
        f'<p class="route"><code>{_METHODS[method]} /v1{escape(path)}</code></p>',
        f"<p>{_prose(operation['description'])}</p>",
    ]
    if asked:
        name = schema_words.name_of(asked["schema"])
        parts += ["<h3>Request</h3>", _fields(document["components"]["schemas"][name])]
    found = operation["responses"]["200"]["content"]
    kinds = " · ".join(
        f"<code>{escape(kind)}</code>: {_type(content['schema'])}"
        for kind, content in found.items()
    )
    statuses = ", ".join(status for status in operation["responses"] if status != "200")
    parts += [
        f"<h3>Answer</h3><p>{kinds}</p>",
        f'<p>Refusals and failures: <a href="#errors">{statuses}</a></p>',
        "<h3>Try it</h3>",
    ]
    example = asked["examples"]["basic"]["value"] if asked else None
    for language, code in samples(operation["operationId"], example).items():
        parts.append(
            f'<div class="sample"><header>{language}</header>'
            f"<pre><code>{escape(code, quote=False)}</code></pre></div>"
        )
    return "\n".join(parts)


def _object(name: str, schema: Json) -> str:
    about = _prose(schema.get("description", ""))
    return f'<h3 id="{name}">{name}</h3><p>{about}</p>{_fields(schema)}'


def _fields(schema: Json) -> str:
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code>"
        f"{'<br><small>required</small>' if name in required else ''}</td>"
        f"<td>{_type(field)}</td><td>{_prose(field.get('description', ''))}</td></tr>"
        for name, field in schema["properties"].items()
    )
    return f"<table><tr><th>Field</th><th>Type</th><th>Meaning</th></tr>{rows}</table>"


def _errors(responses: Json) -> str:
    rows = ""
    for status, response in responses.items():
        example = response["content"]["application/json"]["example"]
        again = "<code>Retry-After</code>" if "Retry-After" in response["headers"] else ""
        rows += (
            f"<tr><td>{status}</td><td><code>{example['error']['type']}</code></td>"
            f"<td>{_prose(response['description'])}</td><td>{again}</td></tr>"
        )
    return f"<table><tr><th>Status</th><th>Type</th><th>Meaning</th><th></th></tr>{rows}</table>"


def _type(schema: Json) -> str:
    return schema_words.type_of(
        schema,
        code=lambda value: f"<code>{escape(value)}</code>",
        link=lambda name: f'<a href="#{name}">{name}</a>',
    )


def _prose(text: str) -> str:
    """Escape a text, with what stands between backticks as code."""
    parts = escape(text, quote=False).split("`")
    return "".join(
        f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts)
    )
