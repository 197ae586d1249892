"""Conversations as Gemma's templates write them best: in its own shape for the results of tools.

All revisions of the template know ``tool_responses`` on the message of the model that called; only
later ones know OpenAI's messages of role ``tool``, and write those as one text each, where the
model was trained on results with fields.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_worker.dialect.messages import Message

_DEPTH = 32  # of a result with fields; templates recurse over them
UNKNOWN = "unknown"  # the template's own word for a function that is not known


def history(messages: Sequence[Message], *, splits: bool) -> list[dict[str, Any]]:
    """Return a conversation with results where their calls are.

    Args:
        messages: in OpenAI's shape.
        splits: the template goes on with a turn in a further message, so that what was said before
            a call can stand before it.
    """
    names = {
        call["id"]: call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls", ())
        if call.get("id")
    }
    written: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            _add_result(written, message, names)
        else:
            written += _turn(message, splits=splits)
    return written


def _turn(message: Message, *, splits: bool) -> list[dict[str, Any]]:
    if "tool_calls" not in message:
        return [dict(message)]
    calls = [_with_mapping(call) for call in message["tool_calls"]]
    if not (splits and message["content"]):
        return [{**message, "tool_calls": calls}]
    said = {name: value for name, value in message.items() if name != "tool_calls"}
    return [said, {"role": message["role"], "content": "", "tool_calls": calls}]


def _with_mapping(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call with arguments that the template can write.

    What is no JSON object, such as arguments that max_tokens cut, it refuses or pastes as it is.
    """
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, Mapping):
        arguments = {"arguments": arguments}
    return {**call, "function": {**function, "arguments": arguments}}


def _add_result(written: list[dict[str, Any]], message: Message, names: Mapping[str, str]) -> None:
    """Add a result to the message that called, or to one of its own."""
    if not written or not written[-1].keys() & {"tool_calls", "tool_responses"}:
        written.append({"role": "assistant", "content": ""})
    caller = written[-1]
    results = caller.setdefault("tool_responses", [])
    # In the order of the calls, if they have no ids.
    called = [call["function"]["name"] for call in caller.get("tool_calls", ())]
    in_turn = called[len(results)] if len(results) < len(called) else UNKNOWN
    name = names.get(message.get("tool_call_id", "")) or message.get("name") or in_turn
    results.append({"name": name, "response": _result(message["content"])})


def _result(content: str) -> Any:
    """Return a result with its fields, if it is JSON that has some; else as the text that it is."""
    if not content.lstrip().startswith(("{", "[")):
        return content
    try:
        value = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return content
    return content if _is_deep(value) else value


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
