"""The contract that is served, against what really validates and answers."""

import ast
import json
import re

import jsonschema
import msgspec
import pytest
import yaml

from edge import errors
from edge.openai_replies import ErrorFacts, ErrorResponse
from edge.openai_schema import ChatCompletionRequest, CompletionRequest
from edge.openapi import STATUSES, field_texts, openapi
from edge.reference_page import reference_page
from edge.request_rules import decode_chat, decode_completion
from edge.samples import samples
from edge.yaml_text import to_yaml


@pytest.fixture(scope="module")
def document():
    return openapi("1.2.3")


def walk(value):
    yield value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from walk(each)


def test_refs(document):
    """Every reference leads somewhere, and every schema is one."""
    for each in walk(document):
        if isinstance(each, dict) and "$ref" in each:
            node = document
            for step in each["$ref"].removeprefix("#/").split("/"):
                node = node[step]
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_status_is_described(document):
    """What the edge may answer stands in the document, with its type."""
    assert STATUSES.keys() == errors.TYPES.keys()
    for operation in ("/chat/completions", "/completions"):
        told = document["paths"][operation]["post"]["responses"].keys()
        assert told == {"200", *map(str, errors.TYPES)}
    kinds = set(document["components"]["schemas"]["ErrorFacts"]["properties"]["type"]["enum"])
    assert kinds == set(errors.TYPES.values())


def test_the_envelope_is_that_of_the_document():
    """What a refusal says is the ErrorResponse of the document."""
    read = msgspec.json.decode(errors.Refusal(429, "wait").body(), type=ErrorResponse)
    assert read == ErrorResponse(ErrorFacts("wait", "rate_limit_error", 429))


@pytest.mark.parametrize("kind", [ChatCompletionRequest, CompletionRequest])
def test_every_field_is_described(document, kind):
    """Each field of a request says what it means."""
    properties = document["components"]["schemas"][kind.__name__]["properties"]
    assert set(properties) == set(kind.__struct_fields__)
    assert set(field_texts(kind)) == set(kind.__struct_fields__)
    assert properties["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 8}
    assert "default" not in properties["n"]


def test_examples(document):
    """What the document shows as an example is taken."""
    for path, decode in (("/chat/completions", decode_chat), ("/completions", decode_completion)):
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        body = json.dumps(content["examples"]["basic"]["value"]).encode()
        decode(body, depth_limit=256)


def test_yaml(document):
    """The YAML says what the JSON says."""
    assert yaml.safe_load(to_yaml(document)) == document
    odd = {"a": [], "b": {}, "no": None, "4": [[1, {"x y": "#: '\"\n"}], True], "é": 1.5}
    assert yaml.safe_load(to_yaml(odd)) == odd


def test_page(document):
    """The page shows every operation and loads nothing from anywhere."""
    page = reference_page(document).decode()
    for path in document["paths"]:
        assert f"/v1{path}</code>" in page
    for name in ChatCompletionRequest.__struct_fields__:
        assert f"<code>{name}</code>" in page
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page)
    ids = set(re.findall(r'id="(\w+)"', page))
    assert set(re.findall(r'href="#(\w+)"', page)) <= ids


def test_samples(document):
    """Each operation can be called from three languages, and the Python is Python."""
    for path, methods in document["paths"].items():
        for operation in methods.values():
            body = {"model": "m", "prompt": "it's"} if "requestBody" in operation else None
            code = samples(operation["operationId"], body)
            assert list(code) == ["curl", "Python", "JavaScript"]
            ast.parse(code["Python"])
            assert path.partition("/{")[0] in code["curl"]
