"""Conversations as a model's template can take them, with nothing of them lost."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_worker.dialect.template_traits import Systems, Traits

Message = Mapping[str, Any]
"""In OpenAI's shape: ``role``, ``content``, ``reasoning``, ``tool_calls``, ``tool_call_id``."""


def within(traits: Traits, messages: Sequence[Message]) -> Sequence[Message]:
    """Return messages as a template with these traits takes them."""
    if traits.systems is not Systems.EVERYWHERE:
        messages = _with_one_system(messages, alone=traits.systems is Systems.FIRST)
    if traits.arguments_are_text:
        messages = [_with_text_arguments(message) for message in messages]
    return messages


def _with_one_system(messages: Sequence[Message], *, alone: bool) -> Sequence[Message]:
    """Join the system messages into a first one, or into the first that is a user's."""
    texts = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    text = "\n\n".join(text for text in texts if text)
    if not text:
        return others
    if alone:
        return [{"role": "system", "content": text}, *others]
    for place, message in enumerate(others):
        if message["role"] == "user":
            said = {**message, "content": f"{text}\n\n{message['content']}"}
            return [*others[:place], said, *others[place + 1 :]]
    return [{"role": "user", "content": text}, *others]


def _with_text_arguments(message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    return {**message, "tool_calls": [_with_text(call) for call in message["tool_calls"]]}


def _with_text(call: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = call["function"]["arguments"]
    if isinstance(arguments, str):
        return call
    text = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": text}}
