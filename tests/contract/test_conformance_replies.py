"""What whole answers look like, plain and streamed: the same requests, held to the same rules."""

import json
import random
from collections.abc import Iterator

import httpx
import pytest

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
PERSON = {
    "type": "json_schema",
    "json_schema": {
        "name": "person",
        "schema": {
            "type": "object",
            # Bounds, since a model this small may never end a number or a name by itself.
            "properties": {
                "name": {"type": "string", "maxLength": 20},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
            },
            "required": ["name", "age"],
            "additionalProperties": False,
        },
    },
}
LINE_ENDS = {
    "type": "json_schema",
    "json_schema": {"name": "ends", "schema": {"const": "a\x85b\u2028c\u2029d"}},
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
HISTORY = [
    {"role": "user", "content": "What is the weather in Rome?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": '{"result": 21}'},
]

# What is asked, in addition to the defaults below, and why the answer ends.
ANSWERED = {
    "text": ("Hello", {}, "stop"),
    "many bytes per character": ("Say hello in Japanese.", {}, "stop"),
    "cut off": ("Count from 17 to 40.", {"max_tokens": 5}, "length"),
    "stop": ("Count from 17 to 40.", {"stop": [" 25", "\n\n"]}, "stop"),
    "sampled": ("Tell me a story about Alice and a boat.", {"temperature": 1, "seed": 7}, "stop"),
    "logprobs": ("Hello", {"logprobs": True, "top_logprobs": 3}, "stop"),
    "several": ("Hello", {"n": 3}, "stop"),
    "thinking": ("What is 7 + 12?", {"reasoning_effort": "low"}, "stop"),
    "not thinking": ("What is 7 + 12?", {"reasoning_effort": "none"}, "stop"),
    "tool": ("What is the weather in Rome?", {"tools": [WEATHER]}, "tool_calls"),
    "two tools": ("What is the weather in Oslo and in Rome?", {"tools": [WEATHER]}, "tool_calls"),
    "required tool": ("Hello", {"tools": [WEATHER], "tool_choice": "required"}, "tool_calls"),
    "named tool": ("Hello", {"tools": [WEATHER], "tool_choice": NAMED}, "tool_calls"),
    "no tool": (
        "What is the weather in Rome?",
        {"tools": [WEATHER], "tool_choice": "none"},
        "stop",
    ),
    "tool result": (HISTORY, {"tools": [WEATHER]}, "stop"),
    "schema": ("Answer in JSON: Dora is 31 years old.", {"response_format": PERSON}, "stop"),
    "object": (
        "Answer in JSON: Dora is 31 years old and lives in Oslo.",
        {"response_format": {"type": "json_object"}},
        "stop",
    ),
    "ends of lines to some readers": ("Hello", {"response_format": LINE_ENDS}, "stop"),
    "thought, then schema": (
        "Answer in JSON: Dora is 31 years old.",
        {"response_format": PERSON, "reasoning_effort": "high"},
        "stop",
    ),
}
# What may be asked for at once, each time something else of each.
MIXED = {
    "prompt": [
        "Hello",
        "What is 7 + 12?",
        "What is the weather in Oslo and in Rome?",
        "Say hello in Japanese.",
        "Show me an animal.",
        "Count from 17 to 40.",
    ],
    "max_tokens": [1, 3, 8, 21, 70],
    "temperature": [0, 0.7, 2],
    "seed": range(1000),
    "stop": [None, None, ".", [" ", "zz"], ["1", "こ"], "</think>", "Rome", '"', "🐱"],
    "tool_choice": [None, None, "auto", "none", "required", NAMED],
    "parallel_tool_calls": [None, False],
    "response_format": [None, None, {"type": "json_object"}, PERSON, LINE_ENDS],
    "reasoning_effort": [None, "low", "high"],
    "logprobs": [False, True],
    "n": [1, 1, 3],
    "top_p": [None, 0, 0.9],
    "min_p": [None, 0.1],
    "frequency_penalty": [None, -2, 2],
    "repetition_penalty": [None, 0, 1.3],
}
CONTINUED = {
    "text": {},
    "cut off at 16": {"max_tokens": None, "prompt": "1 2 3 4 5 6 7"},
    "list": {"prompt": ["The three primary colors are", "1 2 3 4"]},
    "list, several each": {"prompt": ["The three primary colors are", "1 2 3 4"], "n": 2},
    "logprobs": {"logprobs": 2},
    "only the chosen": {"logprobs": 0},
}


@pytest.fixture(scope="module")
def post(stack) -> Iterator:
    headers = {"Authorization": f"Bearer {stack.ready['api_key']}"}
    with httpx.Client(base_url=stack.base_url, headers=headers, timeout=60) as client:

        def post(path, **fields):
            body = {"model": stack.ready["model"], "temperature": 0, **fields}
            answer = client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            return answer

        yield post


def chat(post, prompt, **fields):
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    return post("/chat/completions", messages=messages, **{"max_tokens": 128, **fields})


def text(post, **fields):
    prompt = {"prompt": "The three primary colors are", "max_tokens": 8}
    return post("/completions", **{**prompt, **fields})


def chunks_of(answer):
    """Take the events of a stream apart, holding them to the form that clients rely on."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.text.endswith("\n\n")
    *events, done = answer.text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    assert all(event.startswith("data: {") and len(event.splitlines()) == 1 for event in events)
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    return chunks


def add_calls(calls, deltas):
    """Put tool calls together as clients do: an index always, id, type and name once."""
    for delta in deltas:
        if delta["index"] == len(calls):
            assert delta["id"]
            assert delta["type"] == "function"
            calls.append({**delta, "function": {"arguments": "", **delta["function"]}})
            del calls[-1]["index"]
        else:
            assert set(delta) == {"index", "function"}
            assert set(delta["function"]) == {"arguments"}
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]


def message_of(chunks, index):
    """Put one choice of a stream together; return it as a plain answer holds it."""
    mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    assert mine[0]["delta"] == {"role": "assistant", "content": ""}
    assert mine[-1]["delta"] == {}
    assert [c["finish_reason"] for c in mine[:-1]] == [None] * (len(mine) - 1)
    message = {"role": "assistant", "content": "", "reasoning": "", "tool_calls": []}
    logprobs = []
    for choice in mine[1:-1]:
        delta = choice["delta"]
        assert delta
        assert set(delta) <= {"content", "reasoning", "tool_calls"}
        message["content"] += delta.get("content") or ""
        message["reasoning"] += delta.get("reasoning") or ""
        add_calls(message["tool_calls"], delta.get("tool_calls", []))
        logprobs += (choice.get("logprobs") or {}).get("content", [])
    for name in ("reasoning", "tool_calls"):
        if not message[name]:
            del message[name]
    if "tool_calls" in message and not message["content"]:
        message["content"] = None
    return message, mine[-1]["finish_reason"], logprobs


def without_ids(message):
    """Ids of calls differ from request to request."""
    calls = [{**call, "id": ""} for call in message.get("tool_calls", [])]
    return {**message, "tool_calls": calls}


def check_usage(usage):
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]


def ask_both_ways(post, prompt, **fields):
    """Hold a streamed and a plain answer to the same, and return the plain one."""
    plain = chat(post, prompt, **fields).json()
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = chunks_of(chat(post, prompt, **fields, **stream))

    assert plain["object"] == "chat.completion"
    assert {chunk["object"] for chunk in [*chunks, last]} == {"chat.completion.chunk"}
    assert last["choices"] == []
    assert not any(chunk.get("usage") for chunk in chunks)
    assert last["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    assert last["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    check_usage(plain["usage"])
    assert [choice["index"] for choice in plain["choices"]] == list(range(fields.get("n", 1)))
    for choice in plain["choices"]:
        message, reason, logprobs = message_of(chunks, choice["index"])
        assert choice["finish_reason"] == reason
        calls = message.get("tool_calls", [])
        if reason == "length" and len(calls) > len(choice["message"].get("tool_calls", [])):
            del calls[-1]  # half a call, which a plain answer leaves out
            message["content"] = message["content"] or (None if calls else "")
        assert without_ids(message) == without_ids(choice["message"])
        told = (choice.get("logprobs") or {}).get("content", [])
        assert [each["token"] for each in logprobs] == [each["token"] for each in told]
        # What is cached or runs beside moves them by a rounding.
        values = [each["logprob"] for each in told]
        assert [each["logprob"] for each in logprobs] == pytest.approx(values, abs=1e-3)
    return plain


@pytest.mark.parametrize("name", ANSWERED)
def test_chat(post, name):
    """Streamed and plain say the same, in the form that is promised for each."""
    prompt, fields, reason = ANSWERED[name]
    for choice in ask_both_ways(post, prompt, **fields)["choices"]:
        assert choice["finish_reason"] == reason
        assert "\ufffd" not in (choice["message"]["content"] or "")


@pytest.mark.parametrize("seed", range(40))
def test_any_mixture(post, seed):
    """Whatever is asked for at once, both say the same, and all of it is heeded."""
    pick = random.Random(seed)
    asked = {name: pick.choice(values) for name, values in MIXED.items()}
    tools = [WEATHER] if asked["tool_choice"] else None
    plain = ask_both_ways(post, **asked, tools=tools)

    assert plain["usage"]["completion_tokens"] <= asked["max_tokens"] * asked["n"]
    stops = [asked["stop"]] if isinstance(asked["stop"], str) else asked["stop"] or []
    for choice in plain["choices"]:
        message, reason = choice["message"], choice["finish_reason"]
        calls = message.get("tool_calls", [])
        assert not any(stop in (message["content"] or "") for stop in stops)
        assert (reason == "tool_calls") == (bool(calls) and reason != "length")
        assert not calls or asked["tool_choice"] not in (None, "none")
        assert len(calls) <= 1 or asked["parallel_tool_calls"] is not False
        assert reason != "stop" or asked["tool_choice"] not in ("required", NAMED)
        if asked["response_format"] and reason == "stop" and not stops:
            json.loads(message["content"])


def test_stream_without_usage(post):
    """Nobody gets a usage chunk who has not asked for it."""
    chunks = chunks_of(chat(post, "Hello", stream=True))

    assert all(chunk["choices"] for chunk in chunks)
    assert not any("usage" in chunk for chunk in chunks)


def test_tool_calls(post):
    """Calls have ids of their own and arguments that are JSON, beside null as content."""
    prompt, fields, _ = ANSWERED["two tools"]
    message = chat(post, prompt, **fields).json()["choices"][0]["message"]
    calls = message["tool_calls"]

    assert message["content"] is None
    assert len({call["id"] for call in calls}) == 2
    assert [call["function"]["name"] for call in calls] == ["get_weather"] * 2
    cities = [json.loads(call["function"]["arguments"]) for call in calls]
    assert cities == [{"city": "Oslo"}, {"city": "Rome"}]


def test_one_call_at_a_time(post):
    """Without parallel tool calls there is one call at most."""
    prompt, fields, _ = ANSWERED["two tools"]
    answer = chat(post, prompt, **fields, parallel_tool_calls=False).json()

    assert len(answer["choices"][0]["message"]["tool_calls"]) == 1


def test_tool_result_is_read(post):
    """The model answers from the result of its call."""
    prompt, fields, _ = ANSWERED["tool result"]
    answer = chat(post, prompt, **fields).json()

    assert answer["choices"][0]["message"]["content"] == "The result is 21."


@pytest.mark.parametrize("name", ["schema", "thought, then schema"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_schema_is_satisfied(post, name, temperature):
    """Content satisfies the schema; what the model thinks before does not have to."""
    prompt, fields, _ = ANSWERED[name]
    answer = chat(post, prompt, **fields, temperature=temperature, seed=1).json()
    person = json.loads(answer["choices"][0]["message"]["content"])

    assert set(person) == {"name", "age"}
    assert person["age"] in range(151)


def test_thoughts(post):
    """Thoughts stand apart from the answer, and count as completion tokens."""
    with_thoughts = chat(post, "What is 7 + 12?", reasoning_effort="low").json()
    message = with_thoughts["choices"][0]["message"]
    usage = with_thoughts["usage"]

    assert message["content"] == "The answer is 19."
    assert "7 + 12 = 19" in message["reasoning"]
    assert "think" not in message["content"] + message["reasoning"]
    reasoning_tokens = usage["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < reasoning_tokens < usage["completion_tokens"]
    without = chat(post, "What is 7 + 12?").json()
    assert "reasoning" not in without["choices"][0]["message"]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_thoughts_are_taken_back(post, field):
    """A client may send the thoughts of earlier turns, by either name."""
    turn = {"role": "assistant", "content": "Hi!", field: "I greet."}
    messages = [{"role": "user", "content": "Hi"}, turn, {"role": "user", "content": "Hello"}]

    assert chat(post, messages).json()["choices"][0]["message"]["content"]


def test_logprobs(post):
    """There is an item for each token, in finite numbers, with the likeliest first."""
    prompt, fields, _ = ANSWERED["logprobs"]
    answer = chat(post, prompt, **fields).json()
    items = answer["choices"][0]["logprobs"]["content"]

    text = b"".join(bytes(item["bytes"]) for item in items).decode()
    assert text == answer["choices"][0]["message"]["content"]
    for item in items:
        alternatives = [each["logprob"] for each in item["top_logprobs"]]
        assert len(alternatives) == 3
        assert alternatives == sorted(alternatives, reverse=True)
        assert item["top_logprobs"][0]["token"] == item["token"]  # temperature 0
        assert -1000 < item["logprob"] <= 0


def test_stop_is_left_out(post):
    """Neither the stop text nor what follows it is returned."""
    prompt, fields, _ = ANSWERED["stop"]
    content = chat(post, prompt, **fields).json()["choices"][0]["message"]["content"]

    assert content == "17 18 19 20 21 22 23 24"


def test_seed(post):
    """The same seed gives the same text."""
    prompt = "Tell me a story about a dog and Tom."
    one, two = (chat(post, prompt, temperature=1.5, seed=5, max_tokens=20).json() for _ in range(2))

    assert one["choices"] == two["choices"]


@pytest.mark.parametrize("name", CONTINUED)
def test_text(post, name):
    """Text completions, streamed and plain, say the same; a choice for each prompt, in order."""
    fields = CONTINUED[name]
    plain = text(post, **fields).json()
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = chunks_of(text(post, **fields, **stream))

    assert {plain["object"], *(chunk["object"] for chunk in chunks)} == {"text_completion"}
    check_usage(plain["usage"])
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    prompts = fields["prompt"] if isinstance(fields.get("prompt"), list) else [""]
    number = len(prompts) * fields.get("n", 1)
    assert [choice["index"] for choice in plain["choices"]] == list(range(number))
    for choice in plain["choices"]:
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]


def test_text_defaults_to_16_tokens(post):
    """A text completion that does not say how long it may be gets 16 tokens."""
    answer = text(post, **CONTINUED["cut off at 16"]).json()

    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


def test_text_list_is_each_prompt_alone(post):
    """Prompts in a list are continued as each would be alone, and their tokens add up."""
    prompts = CONTINUED["list"]["prompt"]
    together = text(post, prompt=prompts).json()
    alone = [text(post, prompt=prompt).json() for prompt in prompts]

    assert [c["text"] for c in together["choices"]] == [a["choices"][0]["text"] for a in alone]
    for name in ("prompt_tokens", "completion_tokens"):
        assert together["usage"][name] == sum(answer["usage"][name] for answer in alone)


def test_text_logprobs(post):
    """Text completions have their own shape of log probabilities."""
    choice = text(post, logprobs=2).json()["choices"][0]
    logprobs = choice["logprobs"]

    assert "".join(logprobs["tokens"]) == choice["text"]
    lengths = {len(logprobs[name]) for name in ("tokens", "token_logprobs", "text_offset")}
    assert lengths == {len(logprobs["top_logprobs"])}
    assert all(len(each) >= 2 for each in logprobs["top_logprobs"])


def test_long_prompt_is_cached(post):
    """The same start of a prompt is read once."""
    prompt = "The quick brown fox jumps over the lazy dog. " * 20
    first, second = (chat(post, prompt, max_tokens=1).json()["usage"] for _ in range(2))

    assert second["prompt_tokens"] == first["prompt_tokens"]
    assert second["prompt_tokens_details"]["cached_tokens"] > first["prompt_tokens"] / 2
