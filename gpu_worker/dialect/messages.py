"""Conversations as a model's template can take them, with nothing of them lost."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpu_worker.dialect.template_traits import Calls, Systems, Traits, with_parts

Message = Mapping[str, Any]
"""In OpenAI's shape: ``role``, ``content``, ``reasoning``, ``tool_calls``, ``tool_call_id``."""

THOUGHTS = ("reasoning", "reasoning_content")


def within(traits: Traits, messages: Sequence[Message]) -> Sequence[Message]:
    """Return messages as a template with these traits takes them."""
    messages = list(_with_names(messages))
    if traits.systems is not Systems.EVERYWHERE:
        messages = _with_one_system(messages, alone=traits.systems is Systems.FIRST)
    if not traits.calls_have_content:
        messages = list(_with_content_apart(messages))
    if traits.calls is Calls.ALONE:
        messages = list(_with_calls_alone(messages))
    if traits.turns_alternate:
        messages = _alternating(messages)
    if traits.arguments_are_text:
        messages = [_with_text_arguments(message) for message in messages]
    if traits.contents_are_parts:
        messages = [with_parts(message) for message in messages]
    return messages


def _with_names(messages: Iterable[Message]) -> Iterator[Message]:
    """Name the function of each result, which some templates cannot do without."""
    names: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls", ()):
            names[call.get("id", "")] = call["function"]["name"]
        name = names.get(message.get("tool_call_id", "")) if message["role"] == "tool" else None
        yield {"name": name, **message} if name else message


def _with_one_system(messages: Sequence[Message], *, alone: bool) -> list[Message]:
    """Join the system messages into a first one, or into the first that is a user's."""
    texts = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    text = _joined(texts)
    if not text:
        return others
    # Templates that take one before all others lose it where there are none.
    if alone and others:
        return [{"role": "system", "content": text}, *others]
    for place, message in enumerate(others):
        if message["role"] == "user":
            said = {**message, "content": _joined((text, message["content"]))}
            return [*others[:place], said, *others[place + 1 :]]
    return [{"role": "user", "content": text}, *others]


def _with_content_apart(messages: Iterable[Message]) -> Iterator[Message]:
    """Let what is said beside calls be said before them."""
    for message in messages:
        if not (message.get("tool_calls") and message["content"]):
            yield message
            continue
        yield _without(message, "tool_calls")
        yield {**_without(message, *THOUGHTS), "content": ""}


def _with_calls_alone(messages: Sequence[Message]) -> Iterator[Message]:
    """Give each call a message of its own, with its results behind it."""
    at = 0
    while at < len(messages):
        message, at = messages[at], at + 1
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            yield message
            continue
        results: dict[str | None, list[Message]] = {}
        while at < len(messages) and messages[at]["role"] == "tool":
            results.setdefault(messages[at].get("tool_call_id"), []).append(messages[at])
            at += 1
        for place, call in enumerate(calls):
            alone = {**message, "tool_calls": [call]}
            yield {**_without(alone, *THOUGHTS), "content": ""} if place else alone
            yield from results.pop(call.get("id"), ())
        yield from itertools.chain.from_iterable(results.values())


def _alternating(messages: Iterable[Message]) -> list[Message]:
    """Join what one says in a row.

    Calls and results do not count as turns, so what the model said before them moves to what it
    said after them.
    """
    written: list[Message] = []
    last = -1  # place of the last turn
    for message in messages:
        if message["role"] not in ("user", "assistant") or message.get("tool_calls"):
            written.append(message)
            continue
        in_a_row = last >= 0 and written[last]["role"] == message["role"]
        # What users said before calls would come too late after them.
        if in_a_row and (message["role"] == "assistant" or last == len(written) - 1):
            written.append(_both(written.pop(last), message))
        else:
            written.append(message)
        last = len(written) - 1
    return written


def _both(first: Message, later: Message) -> Message:
    keys = [key for key in ("content", *THOUGHTS) if first.get(key) or later.get(key)]
    texts = {key: _joined((first.get(key), later.get(key))) for key in keys}
    return {**first, **later, **texts}


def _joined(texts: Iterable[str | None]) -> str:
    return "\n\n".join(text for text in texts if text)


def _without(message: Message, *keys: str) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key not in keys}


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
