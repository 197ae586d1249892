"""The default model, which knows nothing of tools or schemas, is held to both all the same."""

import asyncio
import json
import os
from collections import defaultdict

import httpx
import pytest
import schemas
from grammar_texts import GrammarTexts
from processors import needs_avx2

from gpu_worker.engine.cpu.model_source import DEFAULT_SHA256
from gpu_worker.engine.grammar import Json

# 100 is what a release is judged by, and takes six minutes on two cores: too long for every change.
# FASTRUN_TEST_RUNS=100 pytest -s tests/e2e/test_default_model.py
RUNS = int(os.environ.get("FASTRUN_TEST_RUNS", "4"))
AT_ONCE = 8
MAX_TOKENS = 120
LIMIT_S = 300

WEATHER = schemas.closed(
    city={"type": "string", "maxLength": 30}, unit={"enum": ["celsius", "fahrenheit"]}
)
SEARCH = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "maxLength": 40},
        "limit": {"type": "integer", "minimum": 1, "maximum": 50},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 3},
    },
    "required": ["query"],
    "additionalProperties": False,
}
PERSON = schemas.closed(
    name={"type": "string", "minLength": 1, "maxLength": 30},
    age={"type": "integer", "minimum": 0, "maximum": 130},
    email={"anyOf": [{"type": "string", "format": "email", "maxLength": 30}, {"type": "null"}]},
    pets={"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 2},
)
PARAMETERS = {"get_weather": WEATHER, "search": SEARCH}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}
    for name, parameters in PARAMETERS.items()
]
PROMPTS = (
    "What is the weather in Paris?",
    "Who is Alice? She is 31 and has a cat.",
    "Write a poem about the sea.",
    "What is 17 + 25?",
    "猫について教えて 🐱",
)


@pytest.fixture(scope="module")
def default_stack(shared_machine):
    """What `fastrun up` starts when it is told of no model."""
    up = shared_machine.up("--ephemeral", "--json", "--slots", str(AT_ONCE))
    with up.running():
        yield up


@pytest.mark.usefixtures("default_stack")
@needs_avx2
def test_it_is_lowered(shared_machine):
    """It was lowered when it was converted: only so does a worker start as fast as it may."""
    folder = shared_machine.cache / "fastrun" / "models"
    assert list(folder.glob(f"{DEFAULT_SHA256[:32]}-exact-*/heads.json"))


@pytest.fixture
async def ends(default_stack):
    """Ask many times at temperature 1; return the messages by how they ended."""

    async def answers(**fields):
        semaphore = asyncio.Semaphore(AT_ONCE)

        async def ask(client, seed):
            body = {
                "model": default_stack.ready["model"],
                "messages": [{"role": "user", "content": PROMPTS[seed % len(PROMPTS)]}],
                "max_tokens": MAX_TOKENS,
                "temperature": 1,
                "seed": seed,
                **fields,
            }
            async with semaphore:
                answer = await client.post("chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"][0]

        async with httpx.AsyncClient(
            base_url=default_stack.base_url,
            headers={"authorization": f"Bearer {default_stack.ready['api_key']}"},
            timeout=LIMIT_S,
            trust_env=False,
        ) as client:
            choices = await asyncio.gather(*(ask(client, seed) for seed in range(RUNS)))
        ended = defaultdict(list)
        for choice in choices:
            ended[choice["finish_reason"]].append(choice["message"])
        print({reason: len(messages) for reason, messages in ended.items()})
        return ended

    return answers


def call_errors(message):
    """Say what is wrong with the calls of a message."""
    return [
        error
        for call in message.get("tool_calls") or ()
        for error in schemas.errors(
            PARAMETERS[call["function"]["name"]], json.loads(call["function"]["arguments"])
        )
    ]


async def test_required_calls(ends):
    """Some tool is called, with arguments that satisfy its schema; no half a call is shown."""
    ended = await ends(tools=TOOLS, tool_choice="required")
    assert ended.keys() <= {"tool_calls", "length"}
    assert len(ended["tool_calls"]) >= RUNS / 2
    assert all(message["tool_calls"] for message in ended["tool_calls"])
    for message in (*ended["tool_calls"], *ended["length"]):
        assert not message["content"], message
        assert not call_errors(message), message


async def test_named_call(ends):
    """The named tool is called, once."""
    named = {"type": "function", "function": {"name": "search"}}
    ended = await ends(tools=TOOLS, tool_choice=named)
    assert ended.keys() <= {"tool_calls", "length"}
    assert len(ended["tool_calls"]) >= RUNS / 2
    for message in ended["tool_calls"]:
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["search"]
        assert not call_errors(message)


async def test_schema(ends):
    """The answer satisfies the schema, or begins one that does."""
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    ended = await ends(response_format=wanted)
    assert ended.keys() <= {"stop", "length"}
    assert len(ended["stop"]) >= RUNS / 2
    for message in ended["stop"]:
        assert not schemas.errors(PERSON, json.loads(message["content"])), message
    texts = GrammarTexts(Json(json.dumps(PERSON)))
    for message in ended["length"]:
        assert texts.begin_with(message["content"].rstrip("\ufffd")), message
