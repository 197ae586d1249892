"""JSON Schemas of many kinds: answers that end satisfy them, and no other answer begins."""

import asyncio
import json
from collections import Counter

import httpx
import openai
import pytest
import schemas
from grammar_texts import GrammarTexts

from gpu_worker.engine.grammar import Json

AT_ONCE = 12  # three times the slots
MAX_TOKENS = 80
LIMIT_S = 30


@pytest.fixture
async def ask(stack):
    """Send a chat; at most some are under way at once."""
    semaphore = asyncio.Semaphore(AT_ONCE)
    headers = {"authorization": f"Bearer {stack.ready['api_key']}"}
    async with httpx.AsyncClient(
        base_url=stack.base_url, headers=headers, timeout=LIMIT_S, trust_env=False
    ) as client:

        async def send(**fields):
            body = {
                "model": stack.ready["model"],
                "messages": [{"role": "user", "content": "Answer in JSON: 7"}],
                "max_tokens": MAX_TOKENS,
                **fields,
            }
            async with semaphore:
                return await client.post(
                    "chat/completions",
                    content=json.dumps(body),
                    headers={"content-type": "application/json"},
                )

        yield send


def as_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def as_tool(schema):
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


def is_for_a_tool(schema):
    """Tell whether arguments can have it, and the model's window holds it."""
    return schema.get("type") == "object" and len(json.dumps(schema)) < 2000


async def test_held(ask):
    """Every answer is valid, or was cut and is the beginning of one; none is refused."""
    wanted = schemas.held()
    assert len(wanted) >= 300
    answers = await asyncio.gather(
        *(
            ask(response_format=as_format(schema), temperature=1.5, seed=at)
            for at, schema in enumerate(wanted)
        )
    )
    ends = Counter()
    for schema, answer in zip(wanted, answers, strict=True):
        assert answer.status_code == 200, (schema, answer.text)
        (choice,) = answer.json()["choices"]
        content = choice["message"]["content"]
        ends[choice["finish_reason"]] += 1
        if choice["finish_reason"] == "stop":
            assert not schemas.errors(schema, json.loads(content)), (schema, content)
        else:
            texts = GrammarTexts(Json(json.dumps(schema)))
            # The token limit may cut a character.
            assert texts.begin_with(content.rstrip("\ufffd")), (schema, content)
    print(dict(ends))
    assert ends.keys() == {"stop", "length"}
    assert ends["stop"] > 0.75 * len(wanted), ends


async def test_arguments(ask):
    """Arguments of a call that has to be made satisfy the tool's schema."""
    wanted = [schema for schema in schemas.held() if is_for_a_tool(schema)]
    answers = await asyncio.gather(
        *(
            ask(tools=[as_tool(schema)], tool_choice="required", temperature=1.5, seed=at)
            for at, schema in enumerate(wanted)
        )
    )
    ends = Counter()
    for schema, answer in zip(wanted, answers, strict=True):
        assert answer.status_code == 200, (schema, answer.text)
        (choice,) = answer.json()["choices"]
        ends[choice["finish_reason"]] += 1
        if choice["finish_reason"] == "tool_calls":
            (call, *_) = choice["message"]["tool_calls"]
            arguments = json.loads(call["function"]["arguments"])
            assert not schemas.errors(schema, arguments), (schema, arguments)
    print(dict(ends))
    assert ends.keys() == {"tool_calls", "length"}
    assert ends["tool_calls"] > 0.6 * len(wanted), ends


async def test_refused(ask):
    """What cannot be enforced is a 400 that says why, of an answer and of a tool's arguments."""
    wanted = schemas.refused()
    tools = [(schema, why) for schema, why in wanted if is_for_a_tool(schema)]
    assert len(wanted) > 150
    assert len(tools) > 40
    answers = await asyncio.gather(
        *(ask(response_format=as_format(schema)) for schema, _ in wanted),
        *(ask(tools=[as_tool(schema)], tool_choice="required") for schema, _ in tools),
    )
    for (schema, why), answer in zip([*wanted, *tools], answers, strict=True):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, 400), (schema, error)
        assert error["type"] == "invalid_request_error"
        assert why in error["message"], schema
        assert len(error["message"]) <= 1024


# Where each is found out.
REFUSALS = {
    "edge": {"type": "array", "uniqueItems": True},
    "worker": {"const": 2**53 + 1},
    "library": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "trial": {"allOf": [{"type": "string", "pattern": f"a.{{{at}}}b"} for at in range(1, 24)]},
    "generation": {"type": "string", "pattern": "(.*[a-m].{20}){4}"},
}


@pytest.mark.parametrize("stage", REFUSALS)
def test_slots_are_free_after_a_refusal(stack, eventually, stage):
    """Wherever a schema is refused, even in mid-answer, nothing is held once that is said."""
    with stack.client() as client, pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(
            model=stack.ready["model"],
            messages=[{"role": "user", "content": "hi"}],
            response_format=as_format(REFUSALS[stage]),
            max_tokens=1500,
            temperature=1.9,  # by chance an answer may end before it is too much work: not this one
            seed=1,
        )
    assert refusal.value.type == "invalid_request_error"
    assert eventually(lambda: stack.slots_in_use() == 0, 1)
