"""What a chat completion may ask for, and what is said about what it may not."""

import json

import pytest

from edge.errors import Refusal
from edge.openai_schema import decode_chat

HI = [{"role": "user", "content": "hi"}]


def decode(**fields):
    body = json.dumps({"model": "m", "messages": HI, **fields}).encode()
    return decode_chat(body, depth_limit=256)


def refused(**fields):
    with pytest.raises(Refusal) as caught:
        decode(**fields)
    assert caught.value.status == 400
    return caught.value.message


WHOLE = "{} must be a whole number from {} to {}"
NUMBER = "{} must be a number from {} to {}"
RANGES = [
    ("max_tokens", WHOLE, 1, 16384, int),
    ("max_completion_tokens", WHOLE, 1, 16384, int),
    ("temperature", NUMBER, 0, 2, float),
    ("top_p", NUMBER, 0, 1, float),
    ("top_k", WHOLE, 0, 1000, int),
    ("min_p", NUMBER, 0, 1, float),
    ("frequency_penalty", NUMBER, -2, 2, float),
    ("presence_penalty", NUMBER, -2, 2, float),
    ("repetition_penalty", NUMBER, 0, 2, float),
    ("seed", WHOLE, 0, 2147483647, int),
]


@pytest.mark.parametrize(("name", "form", "low", "high", "kind"), RANGES)
def test_ranges(name, form, low, high, kind):
    """Both ends are allowed, what lies beyond is refused with the name and the range."""
    for value in (low, high, float(low), float(high), None):
        got = getattr(decode(**{name: value}), name)
        assert got == value
        assert value is None or isinstance(got, kind)
    for value in (low - 0.5, high + 0.5, low - 1, high + 1, "1", True, [], {}):
        assert refused(**{name: value}) == form.format(name, low, high)


@pytest.mark.parametrize("value", [1.5, 10**30, 1e300])
def test_whole_numbers_only(value):
    """A fraction or a giant is no count of tokens."""
    assert refused(max_tokens=value) == WHOLE.format("max_tokens", 1, 16384)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": None}, "model is required"),
        ({"model": ""}, "model is required"),
        ({"model": 1}, "model must be a non-empty string"),
        ({"model": []}, "model must be a non-empty string"),
        ({"messages": None}, "messages is required"),
        ({"messages": []}, "messages must be a non-empty list of objects"),
        ({"messages": "hi"}, "messages must be a non-empty list of objects"),
        ({"messages": [1]}, "messages[0] must be an object"),
        ({"messages": [{}]}, "messages[0].role is required"),
        ({"messages": [*HI, {"role": "user"}]}, "messages[1].content is required"),
        (
            {"messages": [{"role": "User", "content": "hi"}]},
            "messages[0].role must be one of 'assistant', 'developer', 'system', 'tool', 'user'",
        ),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content must be a string or a list of objects",
        ),
        (
            {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
            "messages[0].content[0].type is required",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text is required",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0]: parts of type 'image_url' are not supported",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]},
            "messages[0].tool_calls is not supported yet",
        ),
        ({"stop": ""}, "stop must be a non-empty string or a list of at most 4 strings"),
        ({"stop": [""]}, "stop[0] must be a non-empty string"),
        ({"stop": ["a", 1]}, "stop[1] must be a non-empty string"),
        (
            {"stop": ["a", "b", "c", "d", "e"]},
            "stop must be a non-empty string or a list of at most 4 strings",
        ),
        ({"stop": 5}, "stop must be a non-empty string or a list of at most 4 strings"),
        ({"stream": "yes"}, "stream must be true or false"),
        ({"stream_options": {}}, "stream_options is only allowed when stream is true"),
        (
            {"stream_options": {"include_usage": None}},
            "stream_options is only allowed when stream is true",
        ),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage must be true or false",
        ),
        ({"top_logprobs": 2}, "top_logprobs is only allowed when logprobs is true"),
        ({"n": 0}, "n must be a whole number from 1 to 8"),
        ({"n": 2}, "n is not supported yet"),
        ({"logprobs": True}, "logprobs is not supported yet"),
        ({"tools": [{"type": "function"}]}, "tools is not supported yet"),
        ({"tool_choice": "required"}, "tool_choice is not supported yet"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported yet"),
        ({"reasoning_effort": "low"}, "reasoning_effort is not supported yet"),
        (
            {"reasoning_effort": "max"},
            "reasoning_effort must be one of 'high', 'low', 'medium', 'none'",
        ),
        (
            {"chat_template_kwargs": {"enable_thinking": True}},
            "chat_template_kwargs is not supported yet",
        ),
        ({"logit_bias": {"1": 2}}, "logit_bias is not supported"),
        ({"functions": [{}]}, "functions is not supported"),
        ({"modalities": ["text", "audio"]}, "modalities is not supported"),
        ({"best_of": 2}, "best_of is not supported"),
        ({"echo": True}, "echo is not supported"),
    ],
)
def test_refused(fields, message):
    """A wrong or unsupported field is named, with what it may be."""
    assert refused(**fields) == message


@pytest.mark.parametrize("name", ["model", "messages"])
def test_missing(name):
    """What every request needs is named when it is not there."""
    fields = {"model": "m", "messages": HI}
    del fields[name]
    with pytest.raises(Refusal) as caught:
        decode_chat(json.dumps(fields).encode(), depth_limit=256)
    assert caught.value.message == f"{name} is required"


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"tools": []},
        {"tool_choice": "auto"},
        {"tool_choice": "none"},
        {"parallel_tool_calls": False},
        {"response_format": {"type": "text"}},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {}},
        {"logprobs": False, "top_logprobs": 0},
        {"logit_bias": {}, "modalities": ["text"], "best_of": 1, "echo": False},
        {"user": "u", "store": True, "metadata": {}, "service_tier": "auto", "x_own": [1]},
        {"stream": True, "stream_options": {}},
        {"stop": []},
        dict.fromkeys(("n", "tools", "stop", "stream", "stream_options", "logit_bias", "audio")),
    ],
)
def test_asks_for_nothing(fields):
    """Values that ask for nothing special, null and unknown fields are taken."""
    decode(**fields)


def test_values():
    """What a worker will be asked for is read from the fields as they are meant."""
    chat = decode(
        max_tokens=5,
        max_completion_tokens=7,
        stop="END",
        stream=True,
        stream_options={"include_usage": True},
    )
    assert chat.token_limit == 7
    assert chat.stops == ["END"]
    assert chat.include_usage
    plain = decode(max_tokens=5, stop=["a", "b"])
    assert (plain.token_limit, plain.stops, plain.include_usage) == (5, ["a", "b"], False)


def test_texts():
    """Parts become one text, lines apart; an assistant's turn may have none."""
    parts = [{"type": "text", "text": "ä"}, {"type": "text", "text": "b"}]
    chat = decode(
        messages=[{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    )
    assert [message.text() for message in chat.messages] == ["ä\nb", None]
    assert chat.text_bytes() == 4
