"""Edges that are killed under load leave exactly one usage record of what any worker accepted.

As it was done before a release:

    FASTRUN_TEST_KILLS=50 pytest -s tests/chaos/test_edge_kills.py
"""

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from contextlib import suppress

import pytest
from metering import Books, Client, misrecorded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

KILLS = int(os.environ.get("FASTRUN_TEST_KILLS", "5"))
EDGES = max(2, KILLS // 5)
"""One that was killed more often would be started again the later, each time."""
RATE = float(os.environ.get("FASTRUN_TEST_RATE", "30"))
MOST_BETWEEN_S = 2


@pytest.fixture
def up(machine):
    up = machine.up(
        *("--ephemeral", "--json", "--edges", str(EDGES), "--engine", "scripted"),
        *("--slots", "16", "--workers", "2"),
        FASTRUN_WORKER_SCRIPTED_TOKENS_PER_S="100",
    )
    with up.running():
        yield up


def body(number):
    return {
        "messages": [{"role": "user", "content": f"[[tokens={number % 41}]] request {number}"}],
        "stream": bool(number % 3),
        "n": 1 + number % 2,
    }


def chat(tokens):
    return {
        "messages": [{"role": "user", "content": f"[[tokens={tokens}]]"}],
        "max_tokens": tokens,
        "stream": True,
    }


def kill(machine, *programs):
    """Kill them at one moment: none sees another one end."""
    pids = [
        pid
        for pid, line in machine.processes().items()
        if any(program in line for program in programs)
    ]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


async def kill_edges(machine, chance):
    """Kill any of them at any moment, also in the midst of their start."""
    for _ in range(KILLS):
        await asyncio.sleep(chance.uniform(0, MOST_BETWEEN_S))
        while not (
            edges := [pid for pid, line in machine.processes().items() if "-m edge" in line]
        ):
            await asyncio.sleep(0.01)
        with suppress(ProcessLookupError):
            os.kill(chance.choice(edges), signal.SIGKILL)


async def test_every_accepted_request_is_recorded_once(up, machine):
    """By id and by counts, records are what workers logged, and completed ones what clients saw."""
    books, client = Books(up), Client(up)
    chance = random.Random(50)
    over = asyncio.Event()
    async with client.open():
        load = asyncio.create_task(client.ask_steadily(RATE, over.is_set, body))
        await kill_edges(machine, chance)
        over.set()
        await load
    records = await books.settled(180)

    worked = await books.worked(records)
    counts = {
        request_id: (record["prompt_tokens"], record["completion_tokens"])
        for request_id, record in records.items()
    }
    assert records.keys() - worked.keys() == set()
    assert worked.keys() - records.keys() == set()
    assert counts.items() - worked.items() == set()
    assert not misrecorded(client.seen, records)
    statuses = Counter(record["status"] for record in records.values())
    print(f"{KILLS} kills, {len(client.seen)} requests:")
    print("clients:", Counter(f"{seen.status} whole={seen.is_whole}" for seen in client.seen))
    print("records:", statuses)
    assert statuses.keys() <= {"completed", "cancelled", "partial"}
    whole = {seen.request_id for seen in client.seen if seen.is_whole}
    # Those that an edge had answered when it was killed before it had written so.
    print(
        "answered and not completed:", sum(records[each]["status"] != "completed" for each in whole)
    )


async def test_ended_while_clients_connect(up, machine):
    """Who has connected to an edge that was told to end gets an answer, accepted or not."""
    edges = [pid for pid, line in machine.processes().items() if "-m edge" in line]
    port = int(up.base_url.split("/")[2].rpartition(":")[2])
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    for edge in edges:
        os.kill(edge, signal.SIGSTOP)
    try:
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in clients:
            writer.write(head)
    finally:
        for edge in edges:
            os.kill(edge, signal.SIGTERM)
            os.kill(edge, signal.SIGCONT)
    async with asyncio.timeout(30):
        heads = [await reader.readuntil(b"\r\n\r\n") for reader, _ in clients]
    assert [each.split(b"\r\n")[0] for each in heads] == [b"HTTP/1.1 200 OK"] * len(clients)
    for _, writer in clients:
        writer.close()


async def test_killed_with_its_worker(up, machine, eventually):
    """What nobody is left to tell is recorded as lost: without counts, for none are guessed."""
    books, client = Books(up), Client(up)
    async with client.open():
        asking = [asyncio.create_task(client.ask(**chat(4000))) for _ in range(4)]
        assert await asyncio.to_thread(
            eventually, lambda: len(books.logged("request_started")) == len(asking)
        )
        kill(machine, "-m gpu_worker", "-m edge")
        await asyncio.gather(*asking)
    accepted = {line["request_id"] for line in books.logged("request_started")}
    records = await books.settled(60)
    assert records.keys() == accepted
    assert [
        (record["status"], record["prompt_tokens"], record["completion_tokens"])
        for record in records.values()
    ] == [("lost", None, None)] * len(asking)


async def test_killed_with_a_backlog(up, machine):
    """What could not be delivered before edges were killed is delivered by those that follow."""
    books, client = Books(up), Client(up)
    (auth,) = [pid for pid, line in machine.processes().items() if "-m auth_service" in line]
    async with client.open():
        while len(client.seen) < 50:  # until each edge knows the key
            assert (await client.ask(**chat(1))).status == 200
        os.kill(auth, signal.SIGSTOP)
        try:
            for number in range(50):
                assert (await client.ask(**chat(1 + number % 9))).status == 200
            kill(machine, "-m edge")
        finally:
            os.kill(auth, signal.SIGCONT)
    records = await books.settled()
    assert {record["status"] for record in records.values()} == {"completed"}
    assert {
        request_id: (record["prompt_tokens"], record["completion_tokens"])
        for request_id, record in records.items()
    } == await books.worked(records)
    assert records.keys() == {seen.request_id for seen in client.seen}
