"""A request's conversation, tools and output format, read from the proto and checked."""

from collections.abc import Mapping
from typing import Any

import msgspec

from fastrun.service.chat_template_kwargs import RESERVED
from fastrun.service.errors import ServiceError
from fastrun.v1 import generation_pb2
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import (
    ChatMessage,
    GenerateRequest,
    ReasoningEffort,
    Role,
    ToolChoiceMode,
)
from gpu_worker.dialect.tools import Tool

ROLES = {
    Role.ROLE_SYSTEM: "system",
    Role.ROLE_USER: "user",
    Role.ROLE_ASSISTANT: "assistant",
    Role.ROLE_TOOL: "tool",
}
EFFORTS = {
    ReasoningEffort.REASONING_EFFORT_LOW: "low",
    ReasoningEffort.REASONING_EFFORT_MEDIUM: "medium",
    ReasoningEffort.REASONING_EFFORT_HIGH: "high",
}
# Of values that templates print: as deep as a request may be.
DEPTH = 256
ANY_OBJECT = '{"type": "object"}'


class InvalidRequestError(ServiceError):
    """The request is wrong; no worker will do better."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorReason.ERROR_REASON_INVALID_REQUEST, message)


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, in plain values."""

    messages: list[dict[str, Any]]  # in OpenAI's shape
    tools: list[Tool]  # that may be called; with a named one, it alone
    shown_tools: list[Tool]  # that the model is told of
    forced: bool = False  # at least one call has to be made
    most_calls: int | None = None
    schema: str | None = None  # of the content
    effort: str | None = None  # of reasoning; None: off
    variables: Mapping[str, Any] = {}  # further ones, for the template


def read(request: GenerateRequest) -> Chat:
    """Read a request.

    Raises:
        InvalidRequestError: with what to change.
    """
    mode, name = request.tool_choice.mode, request.tool_choice.name
    tools = [_tool(tool) for tool in request.tools]
    if mode == ToolChoiceMode.TOOL_CHOICE_MODE_NONE:
        tools = []
    forced = mode in (
        ToolChoiceMode.TOOL_CHOICE_MODE_REQUIRED,
        ToolChoiceMode.TOOL_CHOICE_MODE_NAMED,
    )
    if forced and not tools:
        raise InvalidRequestError("tool_choice asks for a call: give tools as well")
    callable_tools, most_calls = tools, None
    if mode == ToolChoiceMode.TOOL_CHOICE_MODE_NAMED:
        callable_tools = [tool for tool in tools if tool.name == name][:1]
        if not callable_tools:
            raise InvalidRequestError("tool_choice names a function that is not among the tools")
        most_calls = 1
    if request.HasField("parallel_tool_calls") and not request.parallel_tool_calls:
        most_calls = 1
    return Chat(
        messages=[_message(message) for message in request.messages],
        tools=callable_tools,
        shown_tools=tools,
        forced=forced,
        most_calls=most_calls,
        schema=schema(request),
        effort=EFFORTS.get(request.reasoning_effort),
        variables=_variables(request.chat_template_kwargs_json),
    )


def schema(request: GenerateRequest) -> str | None:
    """Return the JSON Schema of the content; None for any text."""
    kind = request.response_format.WhichOneof("format")
    if kind == "json_schema":
        return request.response_format.json_schema
    return ANY_OBJECT if kind == "json_object" and request.response_format.json_object else None


def _message(message: ChatMessage) -> dict[str, Any]:
    # Templates print an absent content as "None".
    said: dict[str, Any] = {"role": ROLES[message.role], "content": message.content}
    if message.HasField("reasoning"):
        # Templates call it by either name.
        said["reasoning_content"] = said["reasoning"] = message.reasoning
    if message.tool_calls:
        said["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_call_id:
        said["tool_call_id"] = message.tool_call_id
    return said


def _call(call: generation_pb2.ToolCall) -> dict[str, Any]:
    arguments: Any = call.arguments
    try:
        parsed = _parsed(call.arguments or "{}")
    except (ValueError, RecursionError):
        parsed = None  # the model sees the text
    if isinstance(parsed, dict) and not _is_deep(parsed):
        arguments = parsed
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _tool(tool: generation_pb2.Tool) -> Tool:
    if not tool.name:
        raise InvalidRequestError("every tool needs a name")
    parameters = None
    if tool.parameters_json_schema:
        parameters = _object(tool.parameters_json_schema, f"the parameters of {tool.name[:64]!r}")
        kinds = parameters.get("type", "object")
        if isinstance(kinds, list) and "object" in kinds:
            parameters["type"] = kinds = "object"  # arguments are one, whatever else might be
        if kinds != "object":
            raise InvalidRequestError(
                f"the parameters of {tool.name[:64]!r} must be of type object"
            )
    return Tool(tool.name, tool.description, parameters)


def _variables(text: str) -> dict[str, Any]:
    variables = _object(text, "chat_template_kwargs") if text else {}
    if taken := sorted(RESERVED & variables.keys()):
        raise InvalidRequestError(f"chat_template_kwargs must not set {', '.join(taken)}")
    return variables


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        value = _parsed(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{what} must be a JSON object") from error
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{what} must be a JSON object")
    if _is_deep(value):
        raise InvalidRequestError(f"{what} must be nested less deeply: at most {DEPTH} levels")
    return value


def _parsed(text: str) -> Any:
    """Read JSON that a prompt can hold: Python's own reader takes half characters and NaN, too."""
    return msgspec.json.decode(text)


def _is_deep(value: Any) -> bool:
    """Tell what a template could not print; how deep it can go differs between Pythons."""
    level = [value]
    for _ in range(DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
