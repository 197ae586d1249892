"""Each request leaves one usage record, however it ends; and all who tell of them agree."""

import asyncio
import json

import aiohttp
import pytest
from metering import Books, Client, misrecorded

SLOTS = 4


@pytest.fixture(scope="module")
def up(shared_machine):
    """A stack that reads and writes slowly enough to be interrupted anywhere."""
    up = shared_machine.up(
        *("--ephemeral", "--json", "--engine", "scripted", "--slots", str(SLOTS)),
        FASTRUN_WORKER_SCRIPTED_TOKENS_PER_S="50",
        FASTRUN_WORKER_SCRIPTED_PROMPT_TOKENS_PER_S="1000",
    )
    with up.running():
        yield up


@pytest.fixture
def books(up):
    return Books(up)


@pytest.fixture
async def client(up):
    async with Client(up).open() as client:
        yield client


def chat(content, **more):
    return {"messages": [{"role": "user", "content": content}], **more}


@pytest.fixture
def recorded(books):
    """Tell what was recorded since the last call, in the order in which it came."""
    known = set()

    async def recorded():
        records = await books.settled()
        new = [record for request_id, record in records.items() if request_id not in known]
        known.update(records)
        return sorted(new, key=lambda record: record["started_at"])

    return recorded


def counts(record):
    return record["prompt_tokens"], record["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True])
async def test_answered(client, recorded, stream):
    """What was answered is recorded with the counts that the client was told."""
    await recorded()
    seen = await client.ask(**chat("[[tokens=7]]", stream=stream))
    (record,) = await recorded()
    assert not misrecorded([seen], {record["request_id"]: record})
    assert (record["status"], record["finish"]) == ("completed", "stop")
    assert (record["completion_tokens"], record["reasoning_tokens"]) == (8, 0)
    assert 0 < record["first_token_ms"] <= record["duration_ms"]


async def test_choices(client, recorded):
    """Three choices are one record: the prompt once, and all completions."""
    await recorded()
    seen = await client.ask(**chat("[[tokens=7]]", n=3))
    (record,) = await recorded()
    assert not misrecorded([seen], {record["request_id"]: record})
    assert record["completion_tokens"] == 3 * 8


async def test_list_of_prompts(client, recorded):
    """Two choices for each of three prompts are one record: each prompt once, all completions."""
    await recorded()
    prompts = ["[[tokens=3]]", "[[tokens=5]] longer", "[[tokens=7]]"]
    seen = await client.ask("completions", prompt=prompts, n=2)
    (record,) = await recorded()
    assert not misrecorded([seen], {record["request_id"]: record})
    assert counts(record) == (sum(map(len, prompts)), 2 * (4 + 6 + 8))


async def left_after(up, lines, **body):
    """Leave a stream after so many lines that say something."""
    headers = {"authorization": f"Bearer {up.ready['api_key']}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        request = {"model": up.ready["model"], "stream": True, **body}
        async with session.post(f"{up.base_url}/chat/completions", json=request) as answer:
            for _ in range(lines):
                while not (await answer.content.readline()).strip():
                    pass
            answer.close()


async def used(books, request_id):
    """What the worker logged of all generations of a request."""
    return (await books.worked([request_id]))[request_id]


@pytest.mark.parametrize("n", [1, 3])
async def test_left_in_decode(up, books, recorded, n):
    """A client that leaves pays what was generated until the worker stopped, of all choices."""
    await recorded()
    await left_after(up, 8, **chat("Hello", max_tokens=2000, n=n))
    (record,) = await recorded()
    assert record["status"] == "cancelled"
    assert counts(record) == await used(books, record["request_id"])
    assert record["completion_tokens"] > 0


async def test_left_in_prefill(up, books, client, recorded, eventually):
    """A client that leaves while its prompt is read is recorded, with a completion of 0 tokens."""
    await recorded()
    started = len(books.logged("request_started"))
    asking = asyncio.create_task(client.ask(**chat("word " * 1000)))
    assert await asyncio.to_thread(
        eventually, lambda: len(books.logged("request_started")) > started
    )
    asking.cancel()
    (record,) = await recorded()
    assert record["status"] == "cancelled"
    assert record["prompt_tokens"] > 5000
    assert (record["completion_tokens"], record["first_token_ms"]) == (0, None)


async def test_left_in_queue(up, books, client, recorded, eventually):
    """A client that leaves before it has a slot leaves no record."""
    await recorded()
    long = chat("Hello", max_tokens=4000)
    running = [asyncio.create_task(client.ask(**long)) for _ in range(SLOTS)]
    assert await asyncio.to_thread(eventually, lambda: up.slots_in_use() == SLOTS)
    waiting = asyncio.create_task(client.ask(**long))
    assert await asyncio.to_thread(eventually, lambda: up.waiting() == 1)
    waiting.cancel()
    assert await asyncio.to_thread(eventually, lambda: up.waiting() == 0)
    for each in running:
        each.cancel()
    assert await asyncio.to_thread(eventually, lambda: up.slots_in_use() == 0)
    assert [record["status"] for record in await recorded()] == ["cancelled"] * SLOTS


@pytest.mark.parametrize(("more", "status"), [({}, 502), ({"stream": True}, 200)])
async def test_failed(books, client, recorded, more, status):
    """A request that fails is recorded with the tokens that were generated."""
    await recorded()
    seen = await client.ask(**chat("[[fail=5]]", **more))
    assert (seen.status, seen.is_whole) == (status, False)
    (record,) = await recorded()
    assert (record["request_id"], record["status"]) == (seen.request_id, "failed")
    assert counts(record) == await used(books, seen.request_id)
    assert record["completion_tokens"] == 5
    assert record["finish"] == ""


async def test_one_of_many_failed(books, client, recorded):
    """Of prompts of which one fails, all are recorded with what was generated, as one failure."""
    await recorded()
    prompts = ["[[tokens=400]]", "[[fail=5]]", "[[tokens=401]]"]
    seen = await client.ask("completions", prompt=prompts, max_tokens=500)
    (record,) = await recorded()
    assert (record["request_id"], record["status"]) == (seen.request_id, "failed")
    assert record["prompt_tokens"] == sum(map(len, prompts))
    assert record["completion_tokens"] == (await used(books, seen.request_id))[1]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"messages": []}, 400),
        ({"messages": [{"role": "user", "content": "Hi"}], "model": "another"}, 404),
        ({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10**9}, 400),
    ],
)
async def test_refused(client, recorded, body, status):
    """What no worker accepted is not recorded."""
    await recorded()
    assert (await client.ask(**body)).status == status
    assert await recorded() == []


async def test_engine_that_died(up, books, client, recorded):
    """A request that kills the engine is recorded once, with the tokens that came before."""
    await recorded()
    seen = await client.ask(**chat("[[die=5]]", stream=True))
    assert not seen.is_whole
    (record,) = await recorded()
    assert (record["request_id"], record["status"]) == (seen.request_id, "failed")
    await used(books, seen.request_id)
    tries = [
        line for line in books.logged("request_finished") if line["request_id"] == seen.request_id
    ]
    # The next process goes on with these tokens, counts them as well, and dies at once.
    assert [each["completion_tokens"] for each in tries] == [5, 5]
    assert counts(record) == (tries[0]["prompt_tokens"], 5)
    async with asyncio.timeout(60):  # the worker is started again
        while (await client.ask(**chat("[[tokens=1]]"))).status != 200:
            await asyncio.sleep(0.1)


async def test_all_agree(up, books, shared_machine):
    """The account, the operator and the sums that are added up anew say what the records say."""
    records = (await books.settled()).values()
    told = json.loads(_fastrun(shared_machine, up, "usage", "--json"))["total"]
    async with (
        aiohttp.ClientSession(
            headers={"authorization": f"Bearer {up.ready['api_key']}"}
        ) as session,
        session.get(f"{up.base_url}/usage") as answer,
    ):
        days = (await answer.json())["data"]
    recomputed = json.loads(_fastrun(shared_machine, up, "usage", "recompute", "--json"))
    assert recomputed["changed"] == 0
    assert told["requests"] == sum(day["requests"] for day in days) == len(records)
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"):
        total = sum(record[name] or 0 for record in records)
        assert told[name] == sum(day[name] for day in days) == total


def _fastrun(machine, up, *arguments):
    done = machine.run(*arguments, "--data", up.ready["data"])
    assert done.returncode == 0, done.stderr
    return done.stdout
