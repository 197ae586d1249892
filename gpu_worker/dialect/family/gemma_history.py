"""Conversations as all revisions of Gemma's templates can write them.

They all know ``tool_responses`` on the message of the model that called; only later ones know
messages of role ``tool``. A result stays the text that it is, as in the later ones: fields made of
its JSON would come back in another order and without its line breaks, which may be what counts
(llama.cpp PR#21522).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_worker.dialect.messages import Message

UNKNOWN = "unknown"  # the template's own word for a function that is not known


def history(messages: Sequence[Message], *, splits: bool) -> list[dict[str, Any]]:
    """Return a conversation with results where their calls are.

    Args:
        messages: in OpenAI's shape.
        splits: the template goes on with a turn in a further message, so that what was said before
            a call can stand before it. One that does not writes it after the results, where an
            answer belongs.
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
        elif not splits and written and _answers(message, written[-1]):
            written[-1]["content"] = message["content"]
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


def _answers(message: Message, before: Message) -> bool:
    """Tell whether a message ends a turn that has come as far as the results."""
    is_last = message["role"] == "assistant" and "tool_calls" not in message
    return is_last and "tool_responses" in before and not before["content"]


def _add_result(written: list[dict[str, Any]], message: Message, names: Mapping[str, str]) -> None:
    """Add a result to the message that called, or to one of its own."""
    if not written or not written[-1].keys() & {"tool_calls", "tool_responses"}:
        written.append({"role": "assistant", "content": ""})
    caller = written[-1]
    results = caller.setdefault("tool_responses", [])
    # In the order of the calls, if they have no ids.
    calls, at = caller.get("tool_calls", ()), len(results)
    in_turn = calls[at]["function"]["name"] if at < len(calls) else UNKNOWN
    name = names.get(message.get("tool_call_id", "")) or message.get("name") or in_turn
    results.append({"name": name, "response": message["content"]})
