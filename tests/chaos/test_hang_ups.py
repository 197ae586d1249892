"""Clients that hang up at random moments harm nobody, and leave nothing held."""

import asyncio
import random

import aiohttp
import orjson
import pytest

CLIENTS = 1000
AT_ONCE = 100
SLOTS = 32
WITNESSES = 4


@pytest.fixture(scope="module")
def busy_stack(shared_machine):
    """One edge and one worker, so that all requests share one Attach."""
    up = shared_machine.up(
        *("--ephemeral", "--json", "--engine", "scripted", "--slots", str(SLOTS)),
        FASTRUN_WORKER_SCRIPTED_TOKENS_PER_S="100",
        FASTRUN_WORKER_SCRIPTED_PROMPT_TOKENS_PER_S="2000",
        FASTRUN_EDGE_QUEUE_TIMEOUT_S="120",
    )
    with up.running():
        yield up


def body(stack, prompt, **more):
    messages = [{"role": "user", "content": prompt}]
    return {"model": stack.ready["model"], "messages": messages, "temperature": 0, **more}


async def whole_text(session, stack, prompt):
    """Read a stream to its end; return its text."""
    url = f"{stack.base_url}/chat/completions"
    async with session.post(url, json=body(stack, prompt, stream=True)) as answer:
        assert answer.status == 200, await answer.text()
        data = (await answer.read()).decode()
    assert data.endswith("data: [DONE]\n\n")
    chunks = [line[6:] for line in data.splitlines() if line.startswith("data: {")]
    deltas = [
        chunk["choices"][0]["delta"].get("content", "") for chunk in map(orjson.loads, chunks)
    ]
    return "".join(deltas)


async def hang_up(session, stack, chance, number):
    """Ask for a long answer and leave at a random moment: in the queue, prefill or decode."""
    prompt = "word " * chance.randrange(1, 200)
    stream = chance.random() < 0.7
    url = f"{stack.base_url}/chat/completions"
    patience = chance.uniform(0, 0.6)
    task = asyncio.create_task(
        read(session, url, body(stack, f"{number} {prompt}", stream=stream, max_tokens=4000))
    )
    await asyncio.wait({task}, timeout=patience)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def read(session, url, request):
    async with session.post(url, json=request) as answer:
        await answer.read()


async def test_a_thousand_hang_ups(busy_stack, eventually):
    """No other stream of the same Attach notices, every slot is free at the end, drift is 0."""
    chance = random.Random(20260)
    headers = {"authorization": f"Bearer {busy_stack.ready['api_key']}"}
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=timeout
    ) as session:
        expected = await whole_text(session, busy_stack, "[[tokens=600]]")
        assert expected
        over = asyncio.Event()

        async def witness():
            texts = []
            while not over.is_set():
                texts.append(await whole_text(session, busy_stack, "[[tokens=600]]"))
            return texts

        witnesses = [asyncio.create_task(witness()) for _ in range(WITNESSES)]
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(number):
            async with gate:
                await hang_up(session, busy_stack, chance, number)

        await asyncio.gather(*(one(number) for number in range(CLIENTS)))
        over.set()
        texts = [text for each in await asyncio.gather(*witnesses) for text in each]
    assert len(texts) >= WITNESSES
    assert set(texts) == {expected}
    assert await asyncio.to_thread(eventually, lambda: busy_stack.slots_in_use() == 0)
    assert busy_stack.waiting() == 0
    assert busy_stack.fleet().drift == 0
