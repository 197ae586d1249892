"""The public API as tables: what is asked, and which status, type and words come back.

Each row is one request to one stack with a real model. What a whole answer has to look like is
checked in test_conformance_replies.py.
"""

import json
from collections.abc import Iterator

import httpx
import pytest

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
TEXT = {"prompt": "The three primary colors are", "max_tokens": 2}
WEATHER = {"type": "function", "function": {"name": "get_weather"}}
TYPES = {401: "authentication_error"}


@pytest.fixture(scope="module")
def api(stack) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {stack.ready['api_key']}"}
    with httpx.Client(base_url=stack.base_url, headers=headers, timeout=60) as client:
        yield client


def user(content):
    return [{"role": "user", "content": content}]


def tool(**function):
    return [{"type": "function", "function": function}]


def called(arguments):
    function = {"name": "f", "arguments": arguments}
    calls = [{"id": "c", "type": "function", "function": function}]
    return [
        *user("Hello"),
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
    ]


def schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def check_refusal(answer, status, words):
    """An envelope, alike everywhere; never a 500."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "code"}
    assert error["code"] == status
    assert error["type"] == TYPES.get(status, "invalid_request_error")
    assert words in error["message"]
    assert len(error["message"]) <= 1000


# A chat completion with one field changed, and the words that say what is wrong.
REFUSED_IN_CHAT = [
    ("model", None, "model is required"),
    ("model", "", "model is required"),
    ("model", 1, "model must be"),
    ("messages", None, "messages is required"),
    ("messages", [], "messages must be a non-empty list"),
    ("messages", "Hello", "messages must be a non-empty list"),
    ("messages", [{"content": "x"}], "messages[0].role is required"),
    ("messages", [{"role": "robot", "content": "x"}], "messages[0].role must be one of"),
    ("messages", [{"role": "user"}], "messages[0].content is required"),
    ("messages", user(5), "messages[0].content must be a string or a list"),
    ("messages", user([{"type": "text"}]), "messages[0].content[0].text is required"),
    ("messages", user([{"type": "image_url", "image_url": {"url": "http://x/"}}]), "'image_url'"),
    ("messages", user([{"type": "input_audio", "input_audio": {}}]), "'input_audio'"),
    ("messages", user("word " * 5000), "context window is 4096 tokens"),
    ("max_tokens", 0, "max_tokens must be a whole number from 1 to 16384"),
    ("max_tokens", 16385, "max_tokens must be a whole number from 1 to 16384"),
    ("max_tokens", "1", "max_tokens must be a whole number"),
    ("max_tokens", 1.5, "max_tokens must be a whole number"),
    ("max_completion_tokens", 0, "max_completion_tokens must be a whole number from 1 to 16384"),
    ("temperature", -0.01, "temperature must be a number from 0 to 2"),
    ("temperature", 2.01, "temperature must be a number from 0 to 2"),
    ("temperature", "1", "temperature must be a number"),
    ("top_p", 1.01, "top_p must be a number from 0 to 1"),
    ("top_k", -1, "top_k must be a whole number from 0 to 1000"),
    ("top_k", 1001, "top_k must be a whole number from 0 to 1000"),
    ("min_p", 1.01, "min_p must be a number from 0 to 1"),
    ("frequency_penalty", -2.01, "frequency_penalty must be a number from -2 to 2"),
    ("presence_penalty", 2.01, "presence_penalty must be a number from -2 to 2"),
    ("repetition_penalty", -0.01, "repetition_penalty must be a number from 0 to 2"),
    ("seed", -1, "seed must be a whole number from 0 to 2147483647"),
    ("seed", 2**31, "seed must be a whole number from 0 to 2147483647"),
    ("stop", "", "stop must be a non-empty string"),
    ("stop", [""], "stop[0] must be a non-empty string"),
    ("stop", list("abcde"), "at most 4 strings"),
    ("n", 0, "n must be a whole number from 1 to 8"),
    ("n", 9, "n must be a whole number from 1 to 8"),
    ("stream", "yes", "stream must be true or false"),
    ("stream_options", {"include_usage": True}, "only allowed when stream is true"),
    ("logprobs", 3, "logprobs must be true or false"),
    ("top_logprobs", 2, "only allowed when logprobs is true"),
    ("top_logprobs", 21, "top_logprobs must be a whole number from 0 to 20"),
    ("tools", tool(), "tools[0].function.name is required"),
    ("tools", [{"type": "web_search"}], "tools[0].type must be"),
    ("tools", [WEATHER, WEATHER], "two functions have the same name"),
    ("tools", tool(name="f", parameters={"type": "wrong"}), "tools[0].function.parameters.type"),
    ("tool_choice", "required", "tool_choice 'required' needs tools"),
    ("tool_choice", WEATHER, "tool_choice names 'get_weather', which is not in tools"),
    ("tool_choice", "maybe", "tool_choice must be one of 'auto', 'none', 'required'"),
    ("response_format", "json", "response_format must be an object"),
    ("response_format", {"type": "xml"}, "response_format.type must be one of"),
    ("response_format", {"type": "json_schema"}, "response_format.json_schema is required"),
    ("response_format", schema({"type": "wrong"}), "schema.type must be one or several of"),
    ("response_format", schema({"type": "string", "pattern": "("}), "regular expression"),
    ("response_format", schema({"$ref": "https://example.com/x"}), "must point into the schema"),
    ("reasoning_effort", "extreme", "reasoning_effort must be one of"),
    ("chat_template_kwargs", [1], "chat_template_kwargs must be an object"),
    ("chat_template_kwargs", {"messages": []}, "chat_template_kwargs.messages cannot be set"),
    ("logit_bias", {"1": 1}, "logit_bias is not supported"),
    ("functions", [{"name": "f"}], "functions is not supported"),
    ("modalities", ["audio"], "modalities is not supported"),
]
REFUSED_IN_TEXT = [
    ("prompt", None, "prompt is required"),
    ("prompt", [], "prompt must be a string or a non-empty list of strings"),
    ("prompt", 5, "prompt must be a string or a non-empty list of strings"),
    ("prompt", [1, 2], "prompt[0] must be a string"),
    ("prompt", "", "prompt is empty"),
    ("prompt", ["a"] * 129, "prompts times n must be at most 128"),
    ("max_tokens", 0, "max_tokens must be a whole number from 1 to 16384"),
    ("logprobs", 21, "logprobs must be a whole number from 0 to 20"),
    ("logprobs", True, "logprobs must be a whole number"),
    ("messages", user("Hello"), "messages is not supported here"),
    ("echo", True, "echo is not supported"),
    ("suffix", "x", "suffix is not supported"),
    ("best_of", 2, "best_of is not supported"),
]
TAKEN_IN_CHAT = [
    {"max_tokens": 1.0},
    {"max_tokens": 1, "max_completion_tokens": 2},
    {"max_tokens": 16384, "stop": ["e", "o"]},
    {"temperature": 0, "top_p": 0, "repetition_penalty": 0},
    {"temperature": 2, "top_k": 1000, "min_p": 0, "frequency_penalty": -2, "presence_penalty": 2},
    {"temperature": None, "top_k": None, "stop": None, "tools": None, "stream": None},
    {"seed": 2147483647},
    {"tools": []},
    *(
        {"tools": tool(name="f", parameters={"type": ["object", "null"]}), "tool_choice": choice}
        for choice in ("auto", "required")
    ),
    {"tool_choice": "auto"},
    {"response_format": {"type": "text"}},
    {"reasoning_effort": "none"},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"user": "me", "store": False, "metadata": {}, "nobody_knows_this": 1},
    {"logit_bias": {}, "modalities": ["text"]},
    {"messages": user([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}])},
    {"messages": [{"role": "developer", "content": "Be short."}, *user("Hello")]},
    *(
        {"messages": called(text)}
        for text in ("", "no JSON", "[1]", r'{"a": "\ud800"}', '{"a": NaN}')
    ),
    {"messages": [*user("\x00<|im_end|>\u202e👩‍🚀"), {"role": "assistant", "content": None}]},
]
TAKEN_IN_TEXT = [
    {"seed": -5},
    {"seed": 2**80},
    {"prompt": ["The sky is"]},
    {"logprobs": 0},
    {"echo": False, "suffix": None, "best_of": 1},
]


@pytest.mark.parametrize(("field", "value", "words"), REFUSED_IN_CHAT)
def test_refused_in_chat(stack, api, field, value, words):
    """A field that is wrong is named, with what it may be."""
    body = {
        "model": stack.ready["model"],
        **CHAT,
        "logprobs": field == "top_logprobs" and value != 2,
    }
    check_refusal(api.post("/chat/completions", json={**body, field: value}), 400, words)


@pytest.mark.parametrize(("field", "value", "words"), REFUSED_IN_TEXT)
def test_refused_in_text(stack, api, field, value, words):
    """It is the same with text completions."""
    body = {"model": stack.ready["model"], **TEXT, field: value}
    check_refusal(api.post("/completions", json=body), 400, words)


@pytest.mark.parametrize("fields", TAKEN_IN_CHAT, ids=json.dumps)
def test_taken_in_chat(stack, api, fields):
    """What is in range is answered, null is absent, and what nobody knows is ignored."""
    body = {"model": stack.ready["model"], **CHAT, **fields}
    answer = api.post("/chat/completions", json=body)

    assert answer.status_code == 200, answer.text
    assert answer.json()["object"] == "chat.completion"


@pytest.mark.parametrize("fields", TAKEN_IN_TEXT, ids=json.dumps)
def test_taken_in_text(stack, api, fields):
    """It is the same with text completions."""
    answer = api.post("/completions", json={"model": stack.ready["model"], **TEXT, **fields})

    assert answer.status_code == 200, answer.text
    assert answer.json()["object"] == "text_completion"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body is empty"),
        (b"hello", "not valid JSON"),
        (b"null", "must be a JSON object"),
        (b"[]", "must be a JSON object"),
        (b'{"model":"x",}', "trailing comma"),
        (b'{"model":"x","temperature":NaN}', "not valid JSON"),
        (b'{"model":"x","temperature":1e999}', "not valid JSON"),
        (b'{"model":"\xff"}', "not valid JSON"),
        (b'{"model":"\\ud800"}', "not valid JSON"),
        ("{}".encode("utf-16"), "not valid JSON"),
        (b'{"a":' + b"[" * 400 + b"]" * 400 + b"}", "nested deeper than 256 levels"),
    ],
)
@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
def test_body_that_is_no_object(api, path, body, words):
    """A body that is not one JSON object is refused, whatever is wrong with it."""
    headers = {"Content-Type": "application/json"}
    check_refusal(api.post(path, content=body, headers=headers), 400, words)


BODY = json.dumps({"model": "tiny", **CHAT}).encode()


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "words"),
    [
        ("POST", "/chat/completions", {"Authorization": ""}, 401, "invalid or missing API key"),
        ("POST", "/chat/completions", {"Authorization": "Bearer"}, 401, "invalid or missing"),
        ("POST", "/chat/completions", {"Authorization": "Basic x"}, 401, "invalid or missing"),
        ("POST", "/chat/completions", {"Authorization": "Bearer fr_x"}, 401, "invalid or missing"),
        ("GET", "/models", {"Authorization": "Bearer fr_x"}, 401, "invalid or missing"),
        ("POST", "/chat/completions", {"Content-Type": "text/plain"}, 415, "application/json"),
        ("POST", "/chat/completions", {"Content-Encoding": "gzip"}, 415, "uncompressed"),
        ("POST", "/chat/completions", {"Expect": "magic"}, 417, "100-continue"),
        ("GET", "/chat/completions", {}, 405, "use OPTIONS, POST here"),
        ("POST", "/models", {}, 405, "use GET, HEAD, OPTIONS here"),
        ("POST", "/chat", {}, 404, "there is no such path"),
        ("POST", "/responses", {}, 404, "use /v1/chat/completions"),
        ("POST", "/v1/chat/completions", {}, 404, "use /v1/chat/completions"),
        ("GET", "/models/nobody/knows-it", {}, 404, "model 'nobody/knows-it' does not exist"),
        ("GET", "/models", {"X-Large": "x" * 20_000}, 431, "16384 bytes"),
    ],
)
def test_refused_by_the_server(api, method, path, headers, status, words):
    """What is wrong with the request around the body is refused in the same form."""
    content = BODY if method == "POST" else None
    headers = {"Content-Type": "application/json", **headers}
    check_refusal(api.request(method, path, content=content, headers=headers), status, words)


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/chat/completions?api-version=1", {}),
        ("POST", "/chat/completions/", {}),
        ("POST", "/chat//completions", {}),
        ("POST", "/chat/completions", {"Content-Type": "Application/JSON; charset=utf-8"}),
        ("POST", "/chat/completions", {"Accept": "text/event-stream"}),
        ("POST", "/chat/completions", {"OpenAI-Organization": "org", "X-Stainless-Lang": "x"}),
        ("GET", "/models?limit=100", {}),
        ("GET", "/models/tiny", {}),
        ("HEAD", "/models", {}),
    ],
)
def test_taken_by_the_server(api, method, path, headers):
    """Small differences between clients do not matter."""
    content = BODY if method == "POST" else None
    headers = {"Content-Type": "application/json", **headers}
    answer = api.request(method, path, content=content, headers=headers)

    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_scheme_in_any_case(stack, scheme):
    """The word before the key may be written in any case."""
    headers = {"Authorization": f"{scheme} {stack.ready['api_key']}"}

    assert httpx.get(f"{stack.base_url}/models", headers=headers).status_code == 200


def test_unknown_model(api):
    """A model that was never served here is a 404."""
    answer = api.post("/chat/completions", json={"model": "nope", **CHAT})

    check_refusal(answer, 404, "model 'nope' does not exist")


def test_bad_key_before_bad_body(api):
    """Whoever may not call does not learn what is wrong with the body."""
    headers = {"Authorization": "Bearer fr_secret"}
    answer = api.post("/chat/completions", content=b"{", headers=headers)

    check_refusal(answer, 401, "invalid or missing API key")
    assert "fr_secret" not in answer.text


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "chunked"])
def test_body_too_large(api, announced):
    """A body over the limit is refused, whether or not its length is said."""
    body = b" " * (11 << 20)
    headers = {"Content-Type": "application/json"}
    answer = api.post(
        "/chat/completions", content=body if announced else iter([body]), headers=headers
    )

    check_refusal(answer, 413, "at most 10485760 bytes")


def test_chunked_body(api):
    """A body may come in pieces."""
    headers = {"Content-Type": "application/json"}
    answer = api.post("/chat/completions", content=iter([BODY[:9], BODY[9:]]), headers=headers)

    assert answer.status_code == 200


def test_request_id(api):
    """A request keeps the id that it came with, else it gets one."""
    named = api.get("/models", headers={"X-Request-Id": "abc-123"})

    assert named.headers["x-request-id"] == "abc-123"
    assert api.get("/models").headers["x-request-id"]
