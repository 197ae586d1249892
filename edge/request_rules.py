"""From the bytes of a request to one of the Structs, refusing all that needs no model.

Decoding is strict where a wrong value would change the answer, and lenient where clients differ:
null is absent, 1.0 is a whole number, and a field that nobody knows is ignored.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

from edge.errors import invalid
from edge.json_body import parse_object
from edge.json_schema import check_enforceable, check_schema, check_values
from edge.openai_schema import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    Message,
    NamedTool,
    Tool,
)
from edge.schema_errors import explain, whole_fields
from fastrun.service.chat_template_kwargs import RESERVED

RequestT = TypeVar("RequestT", bound=GenerationRequest)

MOST_GENERATIONS = 128
"""Prompts times n."""

# OpenAI's fields that fastrun lacks and the values that ask for nothing; ignoring any other would
# change the answer.
_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "logit_bias": ({},),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
}
_ONLY_IN_CHAT: Mapping[str, tuple[Any, ...]] = {
    "messages": ([],),
    "tools": ([],),
    "response_format": ({"type": "text"},),
}
_KWARGS_BYTES = 64 << 10
_KWARGS_DEPTH = 16


def decode_chat(body: bytes, *, depth_limit: int) -> ChatCompletionRequest:
    """Read the body of a chat completion.

    Raises:
        Refusal: 400, with the field's name and what it may be.
    """
    request = _decode(body, ChatCompletionRequest, _UNSUPPORTED, depth_limit)
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs is only allowed when logprobs is true")
    for index, message in enumerate(request.messages):
        _check_message(message, f"messages[{index}]")
    _check_tools(request)
    _check_format(request)
    if request.chat_template_kwargs:
        _check_kwargs(request.chat_template_kwargs)
    return request


def decode_completion(body: bytes, *, depth_limit: int) -> CompletionRequest:
    """Read the body of a text completion.

    Raises:
        Refusal: 400, with the field's name and what it may be.
    """
    unsupported = {**_UNSUPPORTED, **_ONLY_IN_CHAT}
    request = _decode(body, CompletionRequest, unsupported, depth_limit)
    if len(request.texts()) * request.choices > MOST_GENERATIONS:
        raise invalid(f"the number of prompts times n must be at most {MOST_GENERATIONS}")
    return request


def _decode(
    body: bytes,
    kind: type[RequestT],
    unsupported: Mapping[str, tuple[Any, ...]],
    depth_limit: int,
) -> RequestT:
    fields = parse_object(body, depth_limit=depth_limit)
    whole = _whole_fields(kind)
    for name, value in fields.items():
        if name in unsupported and value is not None and value not in unsupported[name]:
            raise invalid(f"{name} is not supported" + (" here" if name in _ONLY_IN_CHAT else ""))
        if isinstance(value, float) and value.is_integer() and name in whole:
            fields[name] = int(value)
    try:
        request = msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise invalid(explain(error, kind)) from None
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options is only allowed when stream is true")
    return request


@cache
def _whole_fields(kind: type[GenerationRequest]) -> frozenset[str]:
    return whole_fields(kind)


def _check_message(message: Message, name: str) -> None:
    if message.function_call:
        raise invalid(f"{name}.function_call is not supported, use tool_calls")
    if message.tool_calls and message.role != "assistant":
        raise invalid(f"{name}.tool_calls is only allowed when role is 'assistant'")
    if message.content is None and message.role != "assistant":
        raise invalid(f"{name}.content is required")
    if not isinstance(message.content, list):
        return
    for index, part in enumerate(message.content):
        if part.type != "text":
            kind = part.type[:40]
            raise invalid(f"{name}.content[{index}]: parts of type '{kind}' are not supported")
        if part.text is None:
            raise invalid(f"{name}.content[{index}].text is required")


def _check_tools(request: ChatCompletionRequest) -> None:
    names = {tool.function.name for tool in request.tools or ()}
    if len(names) < len(request.tools or ()):
        raise invalid("tools: two functions have the same name")
    choice = request.tool_choice
    for index, tool in enumerate(request.tools or ()):
        name = f"tools[{index}].function.parameters"
        _check_tool(tool, name)
        if tool.function.parameters is not None and _is_held_to(tool, request):
            check_enforceable(tool.function.parameters, name)
    if isinstance(choice, NamedTool):
        if choice.function.name not in names:
            raise invalid(f"tool_choice names '{choice.function.name[:64]}', which is not in tools")
    elif choice == "required" and not names:
        raise invalid("tool_choice 'required' needs tools")


def _check_tool(tool: Tool, name: str) -> None:
    parameters = tool.function.parameters
    if parameters is None:
        return
    check_schema(parameters, name)
    kinds = parameters.get("type", "object")
    if "object" not in ([kinds] if isinstance(kinds, str) else kinds):
        raise invalid(f"{name}.type must be 'object'")


def _is_held_to(tool: Tool, request: ChatCompletionRequest) -> bool:
    """Tell whether the arguments of a call are constrained, or left to the model."""
    choice, wanted = request.tool_choice, request.response_format
    if isinstance(choice, NamedTool):
        return choice.function.name == tool.function.name
    if choice in ("required", "none"):
        return choice == "required"
    # The answer is either calls or JSON, and held to be.
    return wanted is not None and wanted.type != "text"


def _check_format(request: ChatCompletionRequest) -> None:
    wanted = request.response_format
    if wanted is None or wanted.type != "json_schema":
        return
    if wanted.json_schema is None:
        raise invalid("response_format.json_schema is required")
    name = "response_format.json_schema.schema"
    check_schema(wanted.json_schema.schema, name)
    check_enforceable(wanted.json_schema.schema, name)


def _check_kwargs(kwargs: dict[str, Any]) -> None:
    for name in sorted(RESERVED & kwargs.keys()):
        raise invalid(f"chat_template_kwargs.{name} cannot be set here")
    check_values(
        kwargs, "chat_template_kwargs", bytes_limit=_KWARGS_BYTES, depth_limit=_KWARGS_DEPTH
    )
