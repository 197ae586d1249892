"""An edge that cannot write down what is used serves nothing new, says so, and heals by itself."""

import asyncio
import os
import resource
import signal
import sys
from contextlib import contextmanager, suppress

import aiohttp
import pytest
from metering import Books, Client, misrecorded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits another process")


@pytest.fixture
def up(machine):
    up = machine.up(
        *("--ephemeral", "--json", "--engine", "scripted", "--slots", "4"),
        FASTRUN_WORKER_SCRIPTED_TOKENS_PER_S="50",
    )
    with up.running():
        yield up


@pytest.fixture
async def client(up):
    async with Client(up).open() as client:
        yield client


def edge_of(machine):
    (edge,) = [pid for pid, line in machine.processes().items() if "-m edge" in line]
    return edge


@contextmanager
def disk_full(edge):
    """Let no file of an edge grow, as if the disk were full."""
    _, most = resource.prlimit(edge, resource.RLIMIT_FSIZE)
    resource.prlimit(edge, resource.RLIMIT_FSIZE, (0, most))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(edge, resource.RLIMIT_FSIZE, (most, most))


def chat(tokens, **more):
    content = f"[[tokens={tokens}]] request"
    return {"messages": [{"role": "user", "content": content}], **more}


async def refused(up):
    """Ask once; return the status and the document that came instead of an answer."""
    headers = {"authorization": f"Bearer {up.ready['api_key']}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(
            f"{up.base_url}/chat/completions", json={"model": up.ready["model"], **chat(1)}
        ) as answer,
    ):
        assert answer.status == 200 or int(answer.headers["retry-after"]) >= 1
        return answer.status, await answer.json()


async def readiness(up):
    address = up.base_url.removesuffix("/v1")
    async with aiohttp.ClientSession() as session, session.get(f"{address}/readyz") as answer:
        return answer.status, await answer.text()


async def test_full_disk(up, machine, client, eventually):
    """What runs ends well and is recorded; what comes gets 503; then there is room, and all heals."""
    books = Books(up)
    await client.ask(**chat(1))
    long = asyncio.create_task(client.ask(**chat(100, stream=True)))
    assert await asyncio.to_thread(eventually, lambda: len(books.logged("request_started")) == 2)
    with disk_full(edge_of(machine)):
        status, document = await refused(up)
        assert status == 503
        assert document["error"] == {
            "message": "usage cannot be recorded right now",
            "type": "unavailable",
            "code": 503,
        }
        status, text = await readiness(up)
        assert status == 503
        assert "usage cannot be recorded in" in text
        assert not long.done()
        assert (await long).is_whole
        async with asyncio.timeout(20):  # it is delivered though it could not be written
            while long.result().request_id not in await books.records():
                await asyncio.sleep(0.05)
        assert (await refused(up))[0] == 503
    async with asyncio.timeout(20):
        while (await readiness(up))[0] != 200:
            await asyncio.sleep(0.05)
    assert (await client.ask(**chat(2))).status == 200
    records = await books.settled()
    assert not misrecorded(client.seen, records)
    assert records.keys() == (await books.worked(records)).keys()


async def test_killed_while_the_disk_is_full(up, machine, client, eventually):
    """What could not be written when the edge was killed is known from when it began, and asked."""
    books = Books(up)
    long = asyncio.create_task(client.ask(**chat(100, stream=True)))
    assert await asyncio.to_thread(eventually, lambda: books.logged("request_started"))
    edge = edge_of(machine)
    with disk_full(edge):
        assert (await refused(up))[0] == 503
        os.kill(edge, signal.SIGKILL)
        assert not (await long).is_whole
    records = await books.settled()
    assert {
        request_id: (record["prompt_tokens"], record["completion_tokens"])
        for request_id, record in records.items()
    } == await books.worked(records)
    assert len(records) == 1
