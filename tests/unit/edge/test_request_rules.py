"""What a request may ask for, and what is said about what it may not."""

import json

import pytest

from edge.errors import Refusal
from edge.request_rules import decode_chat, decode_completion

TYPES = "array, boolean, integer, null, number, object, string"
HI = [{"role": "user", "content": "hi"}]


def decode(**fields):
    body = json.dumps({"model": "m", "messages": HI, **fields}).encode()
    return decode_chat(body, depth_limit=256)


def decode_text(**fields):
    body = json.dumps({"model": "m", "prompt": "p", **fields}).encode()
    return decode_completion(body, depth_limit=256)


def refused(decode=decode, **fields):
    with pytest.raises(Refusal) as caught:
        decode(**fields)
    assert caught.value.status == 400
    return caught.value.message


def function(name="f", **fields):
    return {"type": "function", "function": {"name": name, **fields}}


def json_schema(schema, **fields):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}


def with_call(**fields):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [{**call, **fields}]}


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
            "messages[0].tool_calls[0].type is required",
        ),
        ({"messages": [with_call(id=None)]}, "messages[0].tool_calls[0].id is required"),
        (
            {"messages": [with_call(function={"name": "f", "arguments": {}})]},
            "messages[0].tool_calls[0].function.arguments must be a string",
        ),
        (
            {"messages": [{**with_call(), "role": "user", "content": "x"}]},
            "messages[0].tool_calls is only allowed when role is 'assistant'",
        ),
        ({"messages": [{"role": "tool", "tool_call_id": "c"}]}, "messages[0].content is required"),
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
        ({"n": 9}, "n must be a whole number from 1 to 8"),
        ({"logprobs": 1}, "logprobs must be true or false"),
        (
            {"logprobs": True, "top_logprobs": 21},
            "top_logprobs must be a whole number from 0 to 20",
        ),
        ({"tools": [{}]}, "tools[0].type is required"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type must be one of 'function'"),
        ({"tools": [{"type": "function"}]}, "tools[0].function is required"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools[0].function is required"),
        ({"tools": [function(None)]}, "tools[0].function.name is required"),
        ({"tools": [function(""), 1]}, "tools[0].function.name must be a non-empty string"),
        ({"tools": [function(parameters="{}")]}, "tools[0].function.parameters must be an object"),
        (
            {"tools": [function(parameters={"type": "string"})]},
            "tools[0].function.parameters.type must be 'object'",
        ),
        (
            {"tools": [function(parameters={"properties": {"a": "bar"}})]},
            "tools[0].function.parameters.properties.a must be a schema: an object, true or false",
        ),
        ({"tools": [function(), function()]}, "tools: two functions have the same name"),
        ({"tool_choice": "required"}, "tool_choice 'required' needs tools"),
        (
            {"tool_choice": "any", "tools": [function()]},
            "tool_choice must be one of 'auto', 'none', 'required' or an object",
        ),
        ({"tool_choice": {}, "tools": [function()]}, "tool_choice.type is required"),
        (
            {"tool_choice": {"type": "function", "function": {}}, "tools": [function()]},
            "tool_choice.function.name is required",
        ),
        (
            {"tool_choice": function("g"), "tools": [function("f")]},
            "tool_choice names 'g', which is not in tools",
        ),
        ({"response_format": "json_object"}, "response_format must be an object"),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type must be one of 'json_object', 'json_schema', 'text'",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema is required"),
        (
            {"response_format": json_schema("{}")},
            "response_format.json_schema.schema must be an object",
        ),
        (
            {"response_format": json_schema({}, strict="yes")},
            "response_format.json_schema.strict must be true or false",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name is required",
        ),
        (
            {"response_format": json_schema({"type": "hiccup"})},
            f"response_format.json_schema.schema.type must be one or several of {TYPES}",
        ),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs must be an object"),
        ({"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs.tools cannot be set here"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self cannot be set here"),
        ({"chat_template_kwargs": {"range": 1}}, "chat_template_kwargs.range cannot be set here"),
        (
            {"chat_template_kwargs": {"a": "x" * 70000}},
            "chat_template_kwargs is longer than 65536 bytes",
        ),
        (
            {"chat_template_kwargs": json.loads('{"a":' * 17 + "1" + "}" * 17)},
            "chat_template_kwargs is nested deeper than 16 levels",
        ),
        (
            {"reasoning_effort": "max"},
            "reasoning_effort must be one of 'high', 'low', 'medium', 'none'",
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
        {"n": 8},
        {"tools": []},
        {"reasoning_effort": "low"},
        {"chat_template_kwargs": {"enable_thinking": True, "whatever": [1, {"a": None}]}},
        {"response_format": json_schema({"type": ["string", "null"]}, strict=True)},
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
    assert chat.texts() == ["ä\nb"]


def test_history():
    """Calls, their results and what was thought come back as they were."""
    chat = decode(
        messages=[
            {**with_call(), "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": "c", "content": "Sunny"},
            {"role": "assistant", "content": "a", "tool_calls": None, "function_call": None},
            {"role": "assistant", "content": "b", "tool_calls": [], "name": "n"},
        ]
    )
    call, result, *_ = chat.messages
    assert call.tool_calls[0].function.arguments == "{}"
    assert call.reasoning_content == "hm"
    assert result.tool_call_id == "c"


def test_tools():
    """Each kind of choice is taken, with the tools that it needs."""
    tools = [function(description="d", parameters={"type": "object"}, strict=True), function("g")]
    for choice in ("none", "auto", "required", function("g"), None):
        decode(tools=tools, tool_choice=choice, parallel_tool_calls=False)


SETS = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
TWO = [function("f"), function("g", parameters=SETS)]


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": function("g")},
        {"response_format": {"type": "json_object"}},
        {"response_format": json_schema({}), "tool_choice": "auto"},
    ],
)
def test_calls_that_are_held_to_what_cannot_be_enforced(fields):
    """Where calls are constrained, so are their arguments: no keyword of them is ignored."""
    assert refused(tools=TWO, **fields) == (
        'tools[1].function.parameters.properties.a uses "uniqueItems", which cannot be enforced: '
        "leave it out"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tool_choice": "none", "response_format": {"type": "json_object"}},
        {"tool_choice": function("f")},
        {"response_format": {"type": "text"}},
    ],
)
def test_calls_that_are_free(fields):
    """Where the model writes arguments as it likes, their schema is only shown to it."""
    assert decode(tools=TWO, **fields).tools[1].function.parameters == SETS


def test_format_that_cannot_be_enforced():
    """A schema that asks for more than any engine can do is refused before one is asked."""
    assert refused(response_format=json_schema({"items": {"not": {"type": "null"}}})) == (
        'response_format.json_schema.schema.items uses "not", which cannot be enforced: '
        "leave it out"
    )


def test_alternatives():
    """Without logprobs there are none; with them the number of alternatives."""
    assert decode().alternatives is None
    assert decode(logprobs=True).alternatives == 0
    assert decode(logprobs=True, top_logprobs=3).alternatives == 3
    assert decode_text().alternatives is None
    assert decode_text(logprobs=0).alternatives == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": None}, "prompt is required"),
        ({"prompt": 5}, "prompt must be a string or a non-empty list of strings"),
        ({"prompt": []}, "prompt must be a string or a non-empty list of strings"),
        ({"prompt": {}}, "prompt must be a string or a non-empty list of strings"),
        ({"prompt": [1, 2]}, "prompt[0] must be a string"),
        ({"prompt": ["a", None]}, "prompt[1] is required"),
        ({"prompt": ["a"] * 43, "n": 3}, "the number of prompts times n must be at most 128"),
        ({"logprobs": True}, "logprobs must be a whole number from 0 to 20"),
        ({"logprobs": 21}, "logprobs must be a whole number from 0 to 20"),
        ({"echo": True}, "echo is not supported"),
        ({"suffix": "x"}, "suffix is not supported"),
        ({"best_of": 2}, "best_of is not supported"),
        ({"tools": [function()]}, "tools is not supported here"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported here"),
        ({"max_tokens": 0}, "max_tokens must be a whole number from 1 to 16384"),
        ({"stream_options": {}}, "stream_options is only allowed when stream is true"),
    ],
)
def test_refused_completions(fields, message):
    """A text completion is held to its own table."""
    assert refused(decode_text, **fields) == message


@pytest.mark.parametrize("seed", [-5, 2**53, 2**62, 10**30, 3.0])
def test_seed_of_a_completion(seed):
    """It may be any whole number."""
    assert decode_text(seed=seed).seed == seed


def test_completions():
    """One prompt is a list of one; max_tokens has a default here."""
    one = decode_text(max_tokens=None)
    assert (one.texts(), one.token_limit, one.choices) == (["p"], 16, 1)
    many = decode_text(prompt=["a", ""], n=2, echo=False, suffix="", best_of=1, min_p=0.5)
    assert (many.texts(), many.choices, many.min_p) == (["a", ""], 2, 0.5)
