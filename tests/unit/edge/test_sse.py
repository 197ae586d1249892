"""What a stream looks like on the wire, and that it says what a plain answer says."""

import json

import msgspec
import pytest

from edge.answer import Answer
from edge.errors import Refusal
from edge.formats import ChatFormat, CompletionFormat
from edge.logprobs import TextLogprobsWriter, chat_logprobs
from edge.openai_replies import ChatCompletionChunk, CompletionChunk
from edge.openai_schema import ChatCompletionRequest, CompletionRequest, Message, StreamOptions
from edge.sse import ChatEvents, CompletionEvents, Identity, error_event
from fastrun.v1.generation_pb2 import (
    Delta,
    FinishReason,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    Usage,
)

IDENTITY = Identity("chatcmpl-abc", 'm"/1', 1700000000)
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
STOP = FinishReason.FINISH_REASON_STOP
MESSAGES = [Message("user", "hi")]


def chunk(delta, reason=None, index=0, **more):
    return {
        **HEAD,
        "choices": [{"index": index, "delta": delta, **more, "finish_reason": reason}],
    }


def parse(data, kind=ChatCompletionChunk):
    assert data.endswith(b"\n\n")
    events = data.decode().removesuffix("\n\n").split("\n\n")
    assert all(each.startswith("data: ") for each in events)
    texts = [event.removeprefix("data: ") for event in events]
    for text in texts:
        msgspec.json.decode(text, type=kind)
    return [json.loads(text) for text in texts]


def logprob(token, value=-0.5, *top):
    return TokenLogprob(
        token=token, logprob=value, top=[TopLogprob(token=each, logprob=-1.0) for each in top]
    )


def test_opening():
    """The first chunk of a choice holds its index, the role and an empty text."""
    events = ChatEvents(IDENTITY, 3)
    assert parse(events.opening()) == [chunk({"role": "assistant", "content": ""}, index=3)]


@pytest.mark.parametrize("text", ["a", 'q"\\\n\r\t', "😀\u2028\x00", "data: x\n\ndata: y"])
def test_text(text):
    """Any text is one event on one line, of either kind."""
    event = ChatEvents(IDENTITY, 0).piece(Delta(content=text))
    assert event.count(b"\n") == 2
    assert parse(event) == [chunk({"content": text})]
    event = CompletionEvents(IDENTITY, 0, None).piece(Delta(content=text))
    assert event.count(b"\n") == 2
    (read,) = parse(event, CompletionChunk)
    assert read["choices"] == [{"index": 0, "text": text, "logprobs": None, "finish_reason": None}]


@pytest.mark.parametrize("text", ["a\x85\u2028\u2029\x0b\x1cé", "\u2028"])
def test_one_line_for_every_reader(text):
    """Also those that end lines as Python does find each event on one line, whatever is in it."""
    call = ToolCallDelta(index=0, id="c", name=text, arguments=text)
    rich = Delta(
        content=text, reasoning=text, tool_calls=[call], logprobs=[logprob(text.encode(), -1, b"x")]
    )
    written = [
        ChatEvents(IDENTITY, 0, text_only=True).piece(Delta(content=text)),
        ChatEvents(IDENTITY, 0).piece(rich),
        CompletionEvents(IDENTITY, 0, None).piece(rich),
        CompletionEvents(IDENTITY, 0, 1).piece(rich),
        ChatEvents(Identity("x", text, 1), 0).opening(),
    ]
    for event in written:
        assert event.decode().splitlines() == event.decode().split("\n")[:-1]
        assert json.dumps(text)[1:-1] in json.dumps(parse(event, object))


def test_nothing_to_see():
    """Tokens whose text is held back make no event."""
    delta = Delta(token_ids=[1, 2])
    assert ChatEvents(IDENTITY, 0).piece(delta) == b""
    assert CompletionEvents(IDENTITY, 0, None).piece(delta) == b""


def test_kinds_of_content():
    """Thoughts, text and calls that come together are events of their own, in this order."""
    delta = Delta(content="b", reasoning="a", logprobs=[logprob(b"x")])
    delta.tool_calls.add(index=0, id="call_1", name="f", arguments="{")
    delta.tool_calls.add(index=1, arguments="}")
    thought, text, calls = parse(ChatEvents(IDENTITY, 0).piece(delta))
    assert thought == chunk({"reasoning": "a"})
    assert text == chunk({"content": "b"})
    assert calls["choices"][0]["delta"] == {
        "tool_calls": [
            {
                "index": 0,
                "id": "call_1",
                "type": "function",
                "function": {"name": "f", "arguments": "{"},
            },
            {"index": 1, "function": {"arguments": "}"}},
        ]
    }
    assert calls["choices"][0]["logprobs"]["content"][0]["token"] == "x"


def test_logprobs_of_held_back_text():
    """They are told when their tokens come, with or without text."""
    (event,) = parse(ChatEvents(IDENTITY, 0).piece(Delta(logprobs=[logprob(b"\xf0\x9f", -2.5)])))
    assert event["choices"][0]["delta"] == {"content": ""}
    assert event["choices"][0]["logprobs"] == {
        "content": [
            {"token": "\\xf0\\x9f", "logprob": -2.5, "bytes": [240, 159], "top_logprobs": []}
        ]
    }


def test_text_logprobs():
    """Their offsets count the characters of the text over all pieces of a stream."""
    events = CompletionEvents(IDENTITY, 0, 1)
    pieces = [
        Delta(content="é", logprobs=[logprob(b"\xc3", -1, b"z"), logprob(b"\xa9", -2, b"\xa9")]),
        Delta(content="ab", logprobs=[logprob(b"ab", -0.5, b"ab")]),
    ]
    first, second = (
        each["choices"][0]["logprobs"]
        for piece in pieces
        for each in parse(events.piece(piece), CompletionChunk)
    )
    assert first == {
        "tokens": ["\\xc3", "\\xa9"],
        "token_logprobs": [-1, -2],
        "top_logprobs": [{"z": -1, "\\xc3": -1}, {"\\xa9": -2}],
        "text_offset": [0, 0],
    }
    assert second["text_offset"] == [1]


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (FinishReason.FINISH_REASON_STOP, "stop"),
        (FinishReason.FINISH_REASON_LENGTH, "length"),
        (FinishReason.FINISH_REASON_TOOL_CALLS, "tool_calls"),
    ],
)
def test_finish(reason, word):
    """The last chunk of a choice has an empty delta and the reason."""
    assert parse(ChatEvents(IDENTITY, 1).finish(reason)) == [chunk({}, word, index=1)]


def test_usage():
    """Only on request the usage comes, in a chunk without choices."""
    asked = ChatCompletionRequest(
        model="m", messages=MESSAGES, stream_options=StreamOptions(include_usage=True)
    )
    (event,) = parse(ChatFormat("abc", asked).usage(USAGE))
    assert event["choices"] == []
    assert event["usage"] == USAGE_OBJECT
    plain = ChatCompletionRequest(model="m", messages=MESSAGES)
    assert ChatFormat("abc", plain).usage(USAGE) == b""


def test_reasoning_tokens():
    """What was thought is counted beside the completion tokens, which hold it."""
    usage = Usage(prompt_tokens=1, completion_tokens=5, reasoning_tokens=3)
    form = ChatFormat("abc", ChatCompletionRequest(model="m", messages=MESSAGES))
    told = json.loads(form.document([form.answer()], [STOP], usage))["usage"]
    assert told["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert told["total_tokens"] == 6


def test_error_event():
    """A failure in mid-stream is one event that holds the envelope."""
    event = error_event(Refusal(502, "gone"))
    assert json.loads(event.removeprefix(b"data: ")) == {
        "error": {"message": "gone", "type": "upstream_error", "code": 502}
    }


def answer(form, *deltas):
    return filled(form.answer(), *deltas)


def filled(put_together, *deltas):
    for delta in deltas:
        put_together.add(delta)
    return put_together


def test_plain_chat():
    """A plain answer holds what all pieces say, and only what there is."""
    call = [
        Delta(tool_calls=[{"index": 0, "id": "call_1", "name": "f"}]),
        Delta(tool_calls=[{"index": 0, "arguments": '{"a"'}]),
        Delta(tool_calls=[{"index": 0, "arguments": ":1}"}]),
    ]
    form = ChatFormat("abc", ChatCompletionRequest(model="m", messages=MESSAGES))
    answers = [
        answer(form, Delta(content="hi "), Delta(content="😀")),
        answer(form, Delta(reasoning="hm"), *call),
        answer(form),
    ]
    reasons = [STOP, FinishReason.FINISH_REASON_TOOL_CALLS, FinishReason.FINISH_REASON_LENGTH]
    document = json.loads(form.document(answers, reasons, USAGE))
    assert document["id"] == "chatcmpl-abc"
    assert document["object"] == "chat.completion"
    assert document["usage"] == USAGE_OBJECT
    assert document["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi 😀"},
            "finish_reason": "stop",
        },
        {
            "index": 1,
            "message": {
                "role": "assistant",
                "content": None,
                "reasoning": "hm",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"a":1}'},
                    }
                ],
            },
            "finish_reason": "tool_calls",
        },
        {
            "index": 2,
            "message": {"role": "assistant", "content": ""},
            "finish_reason": "length",
        },
    ]


def test_plain_completion():
    """A plain continuation has its text and, on request, the logprobs of each token."""
    asked = CompletionRequest(model="m", prompt="p", logprobs=0)
    form = CompletionFormat("abc", asked)
    document = json.loads(
        form.document([answer(form, Delta(content="ab", logprobs=[logprob(b"ab")]))], [STOP], USAGE)
    )
    assert document["id"] == "cmpl-abc"
    assert document["object"] == "text_completion"
    assert document["choices"] == [
        {
            "index": 0,
            "text": "ab",
            "logprobs": {
                "tokens": ["ab"],
                "token_logprobs": [-0.5],
                "top_logprobs": None,
                "text_offset": [0],
            },
            "finish_reason": "stop",
        }
    ]


LOGPROBS = [logprob(b"a", -0.5, b"b", b"c"), logprob(b"\xc3"), logprob(b"\xa4", -1e-9, b"x")]


@pytest.mark.parametrize("cuts", [[], [LOGPROBS], [LOGPROBS[:1], LOGPROBS[1:]]])
def test_logprobs_of_a_plain_answer(cuts):
    """Logprobs that came in any number of pieces read as they do at once, and no message is kept."""
    tokens = [each for cut in cuts for each in cut]
    deltas = [Delta(logprobs=cut) for cut in cuts]

    def said(form):
        whole = answer(form, *deltas)
        assert not whole.logprobs
        return json.loads(form.document([whole], [STOP], USAGE))["choices"][0]["logprobs"]

    chat = ChatCompletionRequest(model="m", messages=MESSAGES, logprobs=True)
    assert said(ChatFormat("abc", chat)) == msgspec.to_builtins(chat_logprobs(tokens))
    for alternatives in (0, 2):
        asked = CompletionRequest(model="m", prompt="p", logprobs=alternatives)
        at_once = TextLogprobsWriter(alternatives).write(tokens)
        assert said(CompletionFormat("abc", asked)) == msgspec.to_builtins(at_once)


def test_an_answer_reads_like_its_pieces():
    """Deltas that were put together make events that say the same."""
    deltas = [
        Delta(reasoning="a"),
        Delta(reasoning="b"),
        Delta(content="c"),
        Delta(tool_calls=[{"index": 0, "id": "call_1", "name": "f", "arguments": "{"}]),
        Delta(content="d", tool_calls=[{"index": 0, "arguments": "}"}]),
    ]
    events = parse(ChatEvents(IDENTITY, 0).piece(filled(Answer(), *deltas)))
    thought, text, calls = (event["choices"][0]["delta"] for event in events)
    assert thought == {"reasoning": "ab"}
    assert text == {"content": "cd"}
    assert calls["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
