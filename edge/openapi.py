"""The OpenAPI document, made from the Structs that validate requests and shape answers."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from edge import rate_limits
from edge.errors import RETRY_AFTER_S, TYPES
from edge.openai_replies import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    ErrorResponse,
    Model,
    ModelList,
    UsageList,
)
from edge.openai_schema import ChatCompletionRequest, CompletionRequest

Json = dict[str, Any]
Struct = type[msgspec.Struct]

_REF = "#/components/schemas/{name}"
_ABOUT = """\
The OpenAI API over open models. Any OpenAI client works with this server's address and `/v1` as
its base URL. Each refusal and failure has the same envelope, and those with `Retry-After` can be
tried again then. Fields that nobody knows are ignored; `null` is the same as absent."""

# What each status means here, and in the words of which errors.
STATUSES: Mapping[int, str] = {
    400: "The request is wrong: not JSON, a field missing or out of range, a bad schema, a prompt"
    " over the context window. The message names the field and what it may be.",
    401: "The key is missing, unknown, revoked or expired, or its account may not call.",
    404: "There is no such model or path.",
    405: "The path has other methods; `Allow` lists them.",
    408: "The request came too slowly.",
    413: "The body is too large.",
    415: "The body is not `application/json`, or it is compressed.",
    417: "`Expect` asks for something else than `100-continue`.",
    429: "All slots for the model are busy, and the queue is full or too slow; or a limit of the"
    " account or the key is reached, which the message names.",
    431: "A header or the path is too long.",
    500: "A fault of this server; report the `x-request-id`.",
    502: "The servers that tried failed before the first token; a retry is safe.",
    503: "No server of the model is up, or keys cannot be checked, or usage cannot be recorded or"
    " looked up, or too many large requests are being served, right now.",
}
RATE_LIMITED = 429
_WITHOUT_BODY = frozenset({400, 401, 405, 408, 431, 500, 503})

_SAY_HI = {"role": "user", "content": "Explain prefix caching in one sentence."}
_EXAMPLES: Mapping[Struct, Json] = {
    ChatCompletionRequest: {"messages": [_SAY_HI], "max_tokens": 200},
    CompletionRequest: {"prompt": "The three primary colors are", "max_tokens": 32},
}


def openapi(version: str) -> Json:
    """Make the document.

    Args:
        version: of the server.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fastrun inference API",
            "version": version,
            "summary": "OpenAI-compatible text inference for open models.",
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/v1"}],
        "security": [{"bearerAuth": []}],
        "tags": [{"name": "Chat"}, {"name": "Completions"}, {"name": "Models"}, {"name": "Usage"}],
        "paths": {
            "/chat/completions": {"post": _chat()},
            "/completions": {"post": _completion()},
            "/models": {"get": _list_models()},
            "/models/{model}": {"get": _one_model()},
            "/usage": {"get": _usage()},
        },
        "components": {
            "securitySchemes": {
                "bearerAuth": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key; keys begin with `fr_`.",
                }
            },
            "headers": _headers(),
            "responses": {str(status): _refusal(status) for status in TYPES},
            "schemas": _schemas(),
        },
    }


def _chat() -> Json:
    return {
        "tags": ["Chat"],
        "operationId": "createChatCompletion",
        "summary": "Create a chat completion",
        "description": "Produces the next turn of a conversation. With `stream` the answer is a"
        " stream of `chat.completion.chunk` events that `data: [DONE]` ends.",
        "requestBody": _body(ChatCompletionRequest),
        "responses": {"200": _generated(ChatCompletion, ChatCompletionChunk), **_refusals(TYPES)},
    }


def _completion() -> Json:
    return {
        "tags": ["Completions"],
        "operationId": "createCompletion",
        "summary": "Create a completion",
        "description": "Continues raw text, without a chat template. With `stream` the answer is a"
        " stream of `text_completion` events that `data: [DONE]` ends.",
        "requestBody": _body(CompletionRequest),
        "responses": {"200": _generated(Completion, CompletionChunk), **_refusals(TYPES)},
    }


def _list_models() -> Json:
    return {
        "tags": ["Models"],
        "operationId": "listModels",
        "summary": "List models",
        "description": "The models that can serve requests at this moment.",
        "responses": {"200": _found(ModelList), **_refusals(_WITHOUT_BODY)},
    }


def _one_model() -> Json:
    return {
        "tags": ["Models"],
        "operationId": "getModel",
        "summary": "Describe a model",
        "description": "One model that can serve requests at this moment. Slashes of an id may"
        " stand as they are or as %2F.",
        "parameters": [
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        ],
        "responses": {"200": _found(Model), **_refusals(_WITHOUT_BODY | {404})},
    }


def _usage() -> Json:
    return {
        "tags": ["Usage"],
        "operationId": "getUsage",
        "summary": "Tell what was used",
        "description": "What the account of the key has used, with all of its keys, by day and"
        " model. `first_day` and `last_day` are days in UTC such as `2026-11-29`, both included, at"
        " most 366; without them the answer covers the last 30 days.",
        "parameters": [
            {"name": name, "in": "query", "schema": {"type": "string", "format": "date"}}
            for name in ("first_day", "last_day")
        ],
        "responses": {"200": _found(UsageList), **_refusals(_WITHOUT_BODY | {429})},
    }


def _body(kind: Struct) -> Json:
    example = {"model": "MODEL", **_EXAMPLES[kind]}
    content = {"schema": _ref(kind), "examples": {"basic": {"value": example}}}
    return {"required": True, "content": {"application/json": content}}


def _generated(plain: Struct, chunk: Struct) -> Json:
    return {
        "description": "The answer; when streaming, one event for each chunk.",
        "headers": _request_id() | _rate_limits(),
        "content": {
            "application/json": {"schema": _ref(plain)},
            "text/event-stream": {"schema": {"$ref": _REF.format(name=_event_name(chunk))}},
        },
    }


def _found(kind: Struct) -> Json:
    return {
        "description": "As of now.",
        "headers": _request_id(),
        "content": {"application/json": {"schema": _ref(kind)}},
    }


def _refusals(statuses: Mapping[int, str] | frozenset[int]) -> Json:
    return {
        str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)
    }


def _refusal(status: int) -> Json:
    headers = _request_id()
    if status in RETRY_AFTER_S:
        headers["Retry-After"] = {"$ref": "#/components/headers/Retry-After"}
    if status == RATE_LIMITED:
        headers |= _rate_limits()
    example = {"error": {"message": "...", "type": TYPES[status], "code": status}}
    content = {"schema": _ref(ErrorResponse), "example": example}
    return {
        "description": STATUSES[status],
        "headers": headers,
        "content": {"application/json": content},
    }


def _headers() -> Json:
    return {
        "Retry-After": {
            "description": "Whole seconds to wait before trying again.",
            "schema": {"type": "integer", "minimum": 1},
        },
        "X-Request-Id": {
            "description": "Names this request in our logs: yours, if you sent one.",
            "schema": {"type": "string"},
        },
        **{name: _rate_limit_header(name) for name in rate_limits.NAMES},
    }


def _rate_limit_header(name: str) -> Json:
    *_, figure, unit = name.split("-")
    if figure == "reset":
        text = f"How long until all {unit} are there again, such as `120ms` or `6m0s`."
        return {"description": text, "schema": {"type": "string"}}
    texts = {
        "limit": f"The {unit} that may be used per minute. Absent, with the others of its kind:"
        " there is no such limit.",
        "remaining": f"The {unit} that are left of them now.",
    }
    return {"description": texts[figure], "schema": {"type": "integer", "minimum": 0}}


def _rate_limits() -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in rate_limits.NAMES}


def _request_id() -> Json:
    return {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}}


def _ref(kind: Struct) -> Json:
    return {"$ref": _REF.format(name=kind.__name__)}


def _schemas() -> Json:
    kinds: list[Struct] = [
        ChatCompletionRequest,
        CompletionRequest,
        ChatCompletion,
        ChatCompletionChunk,
        Completion,
        CompletionChunk,
        Model,
        ModelList,
        UsageList,
        ErrorResponse,
    ]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
    structs = {kind.__name__: kind for kind in _structs(kinds)}
    for name, schema in schemas.items():
        schema.pop("title", None)
        for field, text in field_texts(structs[name]).items():
            schema["properties"][field]["description"] = text
        for field in schema["properties"].values():
            # Null as a default says no more than absence, which `required` tells.
            if field.get("default", ...) is None:
                del field["default"]
    for kind in (ChatCompletionChunk, CompletionChunk):
        schemas[_event_name(kind)] = _event(kind)
    return schemas


def _event_name(chunk: Struct) -> str:
    return chunk.__name__.replace("Chunk", "Event")


def _event(chunk: Struct) -> Json:
    """Describe one event of a stream, of which no plain schema can say what its text holds."""
    return {
        "description": "One event of a stream.",
        "type": "object",
        "required": ["data"],
        "properties": {
            "data": {
                "type": "string",
                "description": f"A `{chunk.__name__}` as JSON, or `[DONE]` at the end. A stream"
                " that fails ends with an `ErrorResponse` in place of that.",
                "if": {"const": "[DONE]"},
                "else": {
                    "contentMediaType": "application/json",
                    "contentSchema": {"anyOf": [_ref(chunk), _ref(ErrorResponse)]},
                },
            }
        },
    }


def _structs(kinds: list[Struct]) -> Iterator[Struct]:
    """All Structs that these are made of."""
    waiting: list[Any] = list(kinds)
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        info = node if isinstance(node, msgspec.inspect.Type) else msgspec.inspect.type_info(node)
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in seen:
                continue
            seen.add(info.cls)
            yield info.cls
            waiting.extend(field.type for field in info.fields)
        elif isinstance(info, msgspec.inspect.ListType):
            waiting.append(info.item_type)
        elif isinstance(info, msgspec.inspect.UnionType):
            waiting.extend(info.types)


def field_texts(kind: Struct) -> dict[str, str]:
    """Read the texts that stand below the fields of a Struct, in its source."""
    texts: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if not issubclass(each, msgspec.Struct) or each is msgspec.Struct:
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(definition, ast.ClassDef)
        for field, text in pairwise(definition.body):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(words))),
                ):
                    texts[name] = inspect.cleandoc(words).replace("\n", " ")
    return texts
