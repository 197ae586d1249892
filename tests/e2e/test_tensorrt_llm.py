"""A whole stack whose workers run the TensorRT-LLM engine, over the stand-in for the library."""

import asyncio
import json
import random

import aiohttp
import openai
import pytest
from standin_engine import STANDIN, TINY

STORIES = "The harbour lies still and the boats come home one by one with the evening. " * 4
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}


@pytest.fixture(scope="module")
def gpu_stack(shared_machine):
    """Two workers that find an engine stuck after five seconds."""
    up = shared_machine.up(
        *("--ephemeral", "--json", "--engine", "tensorrt-llm", "--model", f"tiny={TINY}"),
        *("--workers", "2", "--slots", "8"),
        PYTHONPATH=str(STANDIN),
        FASTRUN_STANDIN_STEP_S="0.005",
        FASTRUN_WORKER_STALLED_S="5",
    )
    with up.running():
        yield up


@pytest.fixture
def client(gpu_stack):
    with gpu_stack.client() as made:
        yield made


def asked(text, **fields):
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **fields}


def streamed(client, text, **fields):
    """Return what a stream says, its usage and why it ended."""
    content, usage, reason = "", None, None
    with client.chat.completions.create(
        **asked(text, stream=True, stream_options={"include_usage": True}, **fields)
    ) as chunks:
        for chunk in chunks:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                content += choice.delta.content or ""
                reason = choice.finish_reason or reason
    return content, usage, reason


def test_plain_and_streamed_are_equal(client):
    """The same text, the same usage, the same end."""
    text = f"[[text={STORIES}]]"
    plain = client.chat.completions.create(**asked(text, max_tokens=500))
    choice = plain.choices[0]
    content, usage, reason = streamed(client, text, max_tokens=500)
    assert choice.message.content == content == STORIES
    assert (choice.finish_reason, reason) == ("stop", "stop")
    assert plain.usage.completion_tokens == usage.completion_tokens


def test_tools_are_called(client):
    """A required call has arguments that fit."""
    answer = client.chat.completions.create(
        **asked("weather?", tools=[TOOL], tool_choice="required", max_tokens=200)
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    arguments = json.loads(choice.message.tool_calls[0].function.arguments)
    assert arguments["city"] in {"Rome", "Oslo"}


def test_schemas_are_kept(client):
    """An answer is held to its schema; one that cannot be is refused by name."""
    kept = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    answer = client.chat.completions.create(**asked("x", response_format=kept, max_tokens=200))
    assert json.loads(answer.choices[0].message.content).keys() == {"city", "days"}
    broken = {"type": "integer", "minimum": 5, "maximum": 3}
    kept["json_schema"] = {"name": "none", "schema": broken}
    with pytest.raises(openai.BadRequestError, match="no value fits"):
        client.chat.completions.create(**asked("x", response_format=kept))


def test_several_answers_are_several_requests(client):
    """Each generation is the engine's own request, with a seed of its own."""
    answer = client.chat.completions.create(
        **asked("story", n=3, temperature=1, seed=5, max_tokens=8)
    )
    assert len({choice.message.content for choice in answer.choices}) == 3
    assert answer.usage.completion_tokens == 24


def test_the_fleet_shows_what_workers_compute_on(gpu_stack):
    """By the name that the driver gives it."""
    names = [[gpu.name for gpu in worker.gpus] for worker in gpu_stack.fleet().workers]
    assert names == [["NVIDIA Stand-in 0"]] * 2


def instances(up):
    return {worker.worker_id: worker.instance_id for worker in up.fleet().workers}


@pytest.mark.parametrize("script", ["[[die=40]]", "[[crash=40]]", "[[hang=40]]"])
def test_an_answer_goes_on_when_its_engine_is_lost(gpu_stack, client, eventually, script):
    """Dead, failing or stuck: another worker goes on, and a new process replaces the old one."""
    assert eventually(lambda: len(instances(gpu_stack)) == 2)
    before = instances(gpu_stack)
    text = f"[[text={STORIES}]]"
    _, usage, _ = streamed(client, text, temperature=0, max_tokens=500)
    content, resumed, reason = streamed(client, f"{text}{script}", temperature=0, max_tokens=500)
    assert content == STORIES
    assert reason == "stop"
    assert resumed.completion_tokens == usage.completion_tokens

    def replaced():
        now = instances(gpu_stack)
        return now.keys() == before.keys() and len(set(now.items()) - set(before.items())) == 1

    assert eventually(replaced, 60)
    assert eventually(lambda: gpu_stack.slots_in_use() == 0)


async def test_an_abort_storm_leaves_nothing(gpu_stack, eventually):
    """1,000 clients with logprobs hang up at any moment: no slot is held, and the stack serves."""
    dice = random.Random(11)
    url = f"{gpu_stack.base_url}/chat/completions"
    headers = {"authorization": f"Bearer {gpu_stack.ready['api_key']}"}
    fields = {"stream": True, "logprobs": True, "top_logprobs": 3, "max_tokens": 400}

    async def one(session):
        async def read():
            async with session.post(url, json=asked("story", **fields)) as response:
                await response.read()

        reading = asyncio.ensure_future(read())
        await asyncio.sleep(dice.random() * 0.25)
        reading.cancel()
        await asyncio.wait([reading])

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        for _ in range(20):
            await asyncio.gather(*(one(session) for _ in range(50)))
        assert await asyncio.to_thread(eventually, lambda: gpu_stack.slots_in_use() == 0)
        async with session.post(url, json=asked("[[text=fine]]")) as response:
            body = await response.json()
    assert body["choices"][0]["message"]["content"] == "fine"
