"""Postgres dies, restarts or freezes under load: known keys go on, and no usage is lost.

FASTRUN_TEST_FREEZE_S=20 FASTRUN_TEST_TIMES=1 pytest -s tests/chaos/test_postgres_outages.py

freezes it for so long, longer than an answer about a key is fresh by default, and holds all to
their times, which a busy machine may miss.
"""

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager

import asyncpg
import pytest
from postgres_outages import frozen, postmaster
from traffic import Callers, Operator, Records, edges_that_answered, new_key

FREEZE_S = float(os.environ.get("FASTRUN_TEST_FREEZE_S", "3"))
TIMES = "FASTRUN_TEST_TIMES" in os.environ
KNOWN_PER_S = 20
UNKNOWN_PER_S = 5
HEALED_S = 2.0
REFUSED_S = 0.5
PATIENCE_S = 20


@pytest.fixture(scope="module")
def stack(shared_machine):
    """Two edges that ask about keys anew so soon that an outage is longer than that.

    Its data is kept: Postgres of an ephemeral stack may forget what it has just committed.
    """
    up = shared_machine.up(
        *("--data", str(shared_machine.root / "outages"), "--port", "0", "--json"),
        *("--edges", "2", "--engine", "scripted", "--slots", "32"),
        FASTRUN_EDGE_KEY_FRESH_S="15" if FREEZE_S > 15 else "1",
    )
    with up.running():
        yield up


@asynccontextmanager
async def ended(records, number):
    """End Postgres; `fastrun up` starts it again."""
    os.kill(postmaster(records.server), number)
    async with asyncio.timeout(PATIENCE_S):
        while await is_there(records):
            pass
    yield
    async with asyncio.timeout(PATIENCE_S):
        while not await is_there(records):
            await asyncio.sleep(0.01)


@asynccontextmanager
async def stopped(records):
    """Freeze Postgres for a while."""
    with frozen(records.server):
        yield
        await asyncio.sleep(FREEZE_S)


async def is_there(records):
    try:
        connection = await records.connect()
    except (OSError, IndexError, TimeoutError, asyncpg.PostgresError):
        return False
    await connection.close()
    return True


OUTAGES = {
    "killed": lambda records: ended(records, signal.SIGKILL),
    "restarted": lambda records: ended(records, signal.SIGINT),
    "frozen": stopped,
}


async def time_of_change(callers, operator):
    """When the first request of a new account passed."""
    issued = await operator.issue_at_last()
    return await callers.time_of(lambda: issued.key, 200)


@pytest.mark.parametrize("kind", OUTAGES)
async def test_outage(stack, kind):
    """A known key sees no error, an unknown one 503 and never 401; all usage is there once."""
    records = Records(stack)
    async with Callers.of(stack) as callers, Operator.of(stack) as operator:
        issued = await operator.issue()
        warm = [await callers.ask(issued.key) for _ in range(20)]
        assert await edges_that_answered(stack, warm) == 2

        over = asyncio.Event()
        known = asyncio.create_task(
            callers.asked_steadily(lambda: issued.key, per_s=KNOWN_PER_S, until=over)
        )
        unknown = asyncio.create_task(
            callers.asked_steadily(new_key, per_s=UNKNOWN_PER_S, until=over)
        )
        await asyncio.sleep(1)
        async with OUTAGES[kind](records):
            down_at = time.monotonic()
        up_at = time.monotonic()
        told_at, changed_at = await asyncio.gather(
            callers.time_of(new_key, 401), time_of_change(callers, operator)
        )
        over.set()
        known, unknown = await known, await unknown

        served = [*warm, *known]
        assert [each for each in served if each.status != 200 or not each.is_whole] == []
        assert {each.status for each in unknown} == {401, 503}
        during = [each for each in unknown if each.began_at > down_at and each.ended_at < up_at]
        assert during
        assert {each.status for each in during} == {503}
        assert all(int(each.headers["retry-after"]) >= 1 for each in unknown if each.status == 503)
        refused_s = max(each.took_s for each in unknown if each.status == 503)
        healed_s = [at - up_at for at in (told_at, changed_at)]
        print(
            f"\n{kind}: away for {up_at - down_at:.1f} s; {len(known)} requests of a known key,"
            f" slowest {max(each.took_s for each in known):.2f} s;"
            f" {sum(each.status == 503 for each in unknown)} of unknown ones got 503, slowest"
            f" {refused_s:.2f} s; after its return they got 401 from {healed_s[0]:.2f} s on,"
            f" a new account was served from {healed_s[1]:.2f} s on"
        )
        if TIMES:
            assert refused_s < REFUSED_S
            assert max(healed_s) < HEALED_S
        ids = sorted(each.request_id for each in served)
        async with asyncio.timeout(PATIENCE_S):
            while (found := await records.recorded(issued.account_id))[1] < len(ids):
                await asyncio.sleep(0.1)
        assert (sorted(found[0]), found[1]) == (ids, len(ids))
