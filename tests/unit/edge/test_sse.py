"""What an answer looks like on the wire."""

import json

import pytest

from edge.errors import Refusal
from edge.sse import ChatEvents, Identity, chat_completion, error_event
from fastrun.v1.generation_pb2 import FinishReason, Usage

IDENTITY = Identity("abc", 'm"/1', 1700000000)
USAGE = Usage(prompt_tokens=10, cached_tokens=8, completion_tokens=3)
USAGE_OBJECT = {
    "prompt_tokens": 10,
    "completion_tokens": 3,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 8},
}
HEAD = {
    "id": "chatcmpl-abc",
    "object": "chat.completion.chunk",
    "created": 1700000000,
    "model": 'm"/1',
}


def chunk(delta, reason=None):
    return {**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def parse(data):
    assert data.endswith(b"\n\n")
    events = data.decode().removesuffix("\n\n").split("\n\n")
    assert all(each.startswith("data: ") for each in events)
    return [
        each if each == "[DONE]" else json.loads(each)
        for each in (event.removeprefix("data: ") for event in events)
    ]


def test_role():
    """The first chunk holds the role and an empty text."""
    events = ChatEvents(IDENTITY, include_usage=False)
    assert parse(events.role()) == [chunk({"role": "assistant", "content": ""})]


@pytest.mark.parametrize("text", ["a", 'q"\\\n\r\t', "😀\u2028\x00", "data: x\n\ndata: y"])
def test_text(text):
    """Any text is one event on one line."""
    event = ChatEvents(IDENTITY, include_usage=False).text(text)
    assert event.count(b"\n") == 2
    assert parse(event) == [chunk({"content": text})]


@pytest.mark.parametrize(
    ("reason", "word"),
    [(FinishReason.FINISH_REASON_STOP, "stop"), (FinishReason.FINISH_REASON_LENGTH, "length")],
)
def test_end(reason, word):
    """The last chunk has an empty delta and the reason; then [DONE]."""
    events = ChatEvents(IDENTITY, include_usage=False)
    assert parse(events.end(reason, USAGE)) == [chunk({}, word), "[DONE]"]


def test_end_with_usage():
    """Only on request the usage comes, in a chunk without choices before [DONE]."""
    events = ChatEvents(IDENTITY, include_usage=True)
    finish, usage, done = parse(events.end(FinishReason.FINISH_REASON_STOP, USAGE))
    assert finish == chunk({}, "stop")
    assert usage == {**HEAD, "choices": [], "usage": USAGE_OBJECT}
    assert done == "[DONE]"


def test_error_event():
    """A failure in mid-stream is one event that holds the envelope."""
    (event,) = parse(error_event(Refusal(502, "gone")))
    assert event == {"error": {"message": "gone", "type": "upstream_error", "code": 502}}


def test_plain():
    """A plain reply holds the whole text."""
    body = chat_completion(IDENTITY, "hi 😀", FinishReason.FINISH_REASON_LENGTH, USAGE)
    assert json.loads(body) == {
        **HEAD,
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hi 😀"},
                "finish_reason": "length",
            }
        ],
        "usage": USAGE_OBJECT,
    }
