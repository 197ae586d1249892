"""Postgres stays away for long while requests are served: nothing of what they used is missing.

As it was done before a release, half an hour and 90,000 requests:

    FASTRUN_TEST_OUTAGE_S=1800 FASTRUN_TEST_RATE=50 pytest -s tests/chaos/test_long_outage.py
"""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Thread

import asyncpg
import pytest
from metering import Books, Client, misrecorded

OUTAGE_S = float(os.environ.get("FASTRUN_TEST_OUTAGE_S", "6"))
RATE = float(os.environ.get("FASTRUN_TEST_RATE", "20"))
FROZEN_S = min(OUTAGE_S / 3, 240)
USUAL_S = 3
"""Before and after."""


@pytest.fixture
def up(machine, tmp_path_factory):
    # With data to keep: a Postgres that keeps nothing may lose records when it is killed.
    up = machine.up(
        *("--json", "--port", "0", "--data", str(machine.root / "stack"), "--edges", "2"),
        *("--engine", "scripted", "--slots", "32"),
        FASTRUN_EDGE_KEY_GRACE_S="3600",
    )
    with up.running():
        # It says again and again that Postgres cannot start, and must not have to wait for a reader.
        Thread(target=lambda: list(map(say, up.process.stderr))).start()
        yield up


@contextmanager
def kept_away(books):
    """Freeze Postgres; whoever calls what is yielded kills it, and nobody can start it again."""
    leader = books.postmaster
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, check=True)
    pairs = [map(int, line.split()) for line in listed.stdout.splitlines()]
    pids = [leader, *(pid for pid, parent in pairs if parent == leader)]
    with (books.folder / "postgres" / "lock").open("r+") as lock:

        def kill():
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            fcntl.flock(lock, fcntl.LOCK_EX)

        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield kill


def say(text):
    print(f"{datetime.now(UTC):%H:%M:%S} {text.rstrip()}", flush=True)


async def test_nothing_is_missing_after_a_long_outage(up, machine):
    """While Postgres is frozen, then gone, known keys are served; later each record is there."""
    books, client = Books(up), Client(up)
    over = asyncio.Event()

    def body(number):
        content = f"[[tokens={number % 8}]] request {number}"
        return {"messages": [{"role": "user", "content": content}], "stream": number % 2 == 0}

    async with client.open():
        load = asyncio.create_task(client.ask_steadily(RATE, over.is_set, body))
        await asyncio.sleep(USUAL_S)
        with kept_away(books) as kill:
            say(f"frozen after {len(client.seen)} requests")
            await asyncio.sleep(FROZEN_S)
            await asyncio.to_thread(kill)
            say(f"killed after {len(client.seen)} requests")
            await asyncio.sleep(OUTAGE_S - FROZEN_S)
            spool = sum(path.stat().st_size for path in (books.folder / "spool").iterdir())
            say(f"back after {len(client.seen)} requests, of which {spool} bytes are spooled")
        await asyncio.sleep(USUAL_S)
        over.set()
        await load
    assert Counter(seen.status for seen in client.seen) == {200: len(client.seen)}
    records = await asyncio.wait_for(_records(books), 600)
    say(f"{len(client.seen)} requests, {len(records)} records")
    assert not misrecorded(client.seen, records)
    assert len(client.seen) == len(records)
    assert {record["status"] for record in records.values()} == {"completed"}

    total = json.loads(_fastrun(machine, books, "usage", "--json"))["total"]
    assert total["requests"] == len(records)
    for name in client.seen[0].usage:
        assert total[name] == sum(record[name] for record in records.values())
    recomputed = json.loads(_fastrun(machine, books, "usage", "recompute", "--json"))
    assert recomputed["changed"] == 0


async def _records(books):
    """Wait until Postgres is there, and what is in the spool is in it."""
    while True:
        try:
            return await books.settled()
        except (OSError, IndexError, asyncpg.PostgresError):
            await asyncio.sleep(0.1)


def _fastrun(machine, books, *arguments):
    done = machine.run(*arguments, "--data", str(books.folder))
    assert done.returncode == 0, done.stderr
    return done.stdout
