"""Conversations and tools as gpt-oss' own template takes them, with nothing of them lost."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpu_worker.dialect.chat_template import Verbatim
from gpu_worker.dialect.messages import Message
from gpu_worker.dialect.tools import Tool


def for_template(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield messages with thoughts where the template looks for them, and results as they came.

    It would write a result as a JSON string; OpenAI's own library does not.

    Args:
        messages: with one call each at most.
    """
    answers = (at for at, each in enumerate(messages) if _is_answer(each))
    last_answer = max(answers, default=-1)
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            yield {**message, "content": Verbatim(message["content"])}
        elif "tool_calls" in message:
            # Of what has been answered since, the template drops all that stands beside a call.
            yield from _call(message, is_running=at > last_answer)
        else:
            yield message


def tool_for_template(tool: Tool) -> dict[str, Any]:
    """Return a tool as the template expects it, which raises where it misses something."""
    value = tool.as_template_value()
    function = value["function"]
    # It writes one comment line.
    function["description"] = "\n// ".join(tool.description.splitlines())
    properties = function["parameters"].get("properties")
    if isinstance(properties, Mapping):
        named = {name: _property(inner) for name, inner in properties.items()}
        function["parameters"] = {**function["parameters"], "properties": named}
    return value


def _is_answer(message: Message) -> bool:
    return message["role"] == "assistant" and "tool_calls" not in message


def _call(message: Message, *, is_running: bool) -> Iterator[Message]:
    content, thought = message["content"], message.get("reasoning") or ""
    if is_running:
        # It refuses to write both. What was said before a call has no place of its own in it.
        thought = "\n\n".join(text for text in (thought, content) if text)
    elif content:
        yield {"role": "assistant", "content": content}
    yield {
        "role": "assistant",
        "content": "",
        "thinking": thought,
        "tool_calls": [_with_verbatim_arguments(call) for call in message["tool_calls"]],
    }


def _with_verbatim_arguments(call: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = call["function"]["arguments"]
    if not isinstance(arguments, str):
        return call
    return {**call, "function": {**call["function"], "arguments": Verbatim(arguments)}}


def _property(schema: Any) -> Any:
    if not isinstance(schema, Mapping) or not (schema.get("enum") or schema.get("oneOf")):
        return schema
    default = schema.get("default", "")
    if isinstance(default, str):
        return schema
    # The template takes it for a text.
    return {**schema, "default": json.dumps(default, ensure_ascii=False)}
