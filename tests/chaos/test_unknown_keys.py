"""A flood of keys that nobody has issued harms neither Postgres nor whoever has a good one.

pytest -s tests/chaos/test_unknown_keys.py tells how much good keys were slowed.
"""

import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from traffic import Callers, Operator, Records, new_key

from auth_service.database import POOL_SIZE

KEYS = 2000
PER_S = 50
FLOOD = Path(__file__).parent.parent / "flood.py"


@pytest.fixture(scope="module")
def stack(shared_machine):
    """Two edges."""
    up = shared_machine.up(
        *("--ephemeral", "--json", "--edges", "2", "--engine", "scripted", "--slots", "32"),
        FASTRUN_WORKER_SCRIPTED_TOKENS_PER_S="0",
    )
    with up.running():
        yield up


async def connections(records, until):
    """The most connections of the auth service at any moment, as Postgres counts them."""
    most = 0
    connection = await records.connect()
    try:
        while not until.is_set():
            count = await connection.fetchval(
                "select count(*) from pg_stat_activity where application_name = 'fastrun-auth'"
            )
            most = max(most, count)
            await asyncio.sleep(0.01)
    finally:
        await connection.close()
    return most


async def flood_to_come(stack):
    """A process that has opened all connections, and sends all keys at once when it is told."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(FLOOD), urlsplit(stack.base_url).netloc, str(KEYS)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert await process.stdout.readline() == b"connected\n"
    return process


def figures(answers):
    """Median and 99th percentile, in milliseconds."""
    took_ms = sorted(each.took_s * 1000 for each in answers)
    return f"{statistics.median(took_ms):.1f} and {took_ms[len(took_ms) * 99 // 100]:.1f} ms"


async def test_flood(stack):
    """Postgres gets no more connections than the pool has, and every unknown key is refused."""
    async with Callers.of(stack) as callers, Operator.of(stack) as operator:
        issued = await operator.issue()
        for _ in range(20):  # both edges know it then
            await callers.ask(issued.key)
        quiet, over = asyncio.Event(), asyncio.Event()
        before = asyncio.create_task(
            callers.asked_steadily(lambda: issued.key, per_s=PER_S, until=quiet)
        )
        process = await flood_to_come(stack)
        await asyncio.sleep(2)
        quiet.set()
        before = await before
        asking = asyncio.create_task(
            callers.asked_steadily(lambda: issued.key, per_s=PER_S, until=over)
        )
        counting = asyncio.create_task(connections(Records(stack), over))
        await asyncio.sleep(0.1)
        began_at = time.monotonic()
        out, _ = await process.communicate(b"go\n")
        ended_at = time.monotonic()
        over.set()
        during, most = await asking, await counting
        statuses = json.loads(out)
        during = [each for each in during if began_at - 0.1 < each.began_at < ended_at]
        print(
            f"\n{KEYS} unknown keys were refused within {ended_at - began_at:.2f} s: {statuses};"
            f" at most {most} connections to Postgres; good keys took, median and p99,"
            f" {figures(before)} before ({len(before)}), {figures(during)} meanwhile"
            f" ({len(during)})"
        )
        assert {each.status for each in (*before, *during)} == {200}
        assert most <= POOL_SIZE + 1
        assert sum(statuses.values()) == KEYS
        assert set(statuses) <= {"401", "503"}
        await callers.time_of(new_key, 401)
