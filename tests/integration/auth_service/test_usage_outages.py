"""Usage while Postgres is frozen or killed: every call ends, and every record is there once."""

import asyncio
import os
import signal
from dataclasses import replace
from datetime import UTC, date, datetime
from random import Random

import pytest
from auth_stores import open_stores, usage_of_all
from postgres_outages import frozen, postmaster

from auth_service.errors import StoreUnavailableError
from auth_service.usage import Days, UsageRecord, UsageStatus
from auth_service.usage_store import UsageStore

DAY = date(2029, 3, 1)
RECORD = UsageRecord(
    request_id="r",
    account_id="acct_1",
    key_id="key_1",
    model="m",
    worker_id="w",
    prompt_tokens=1,
    cached_tokens=0,
    completion_tokens=1,
    reasoning_tokens=0,
    first_token_ms=1,
    duration_ms=1,
    finish="stop",
    status=UsageStatus.COMPLETED,
    started_at=datetime(2029, 3, 1, 12, tzinfo=UTC).timestamp(),
)


@pytest.fixture
async def stores(mistreated):
    # Tests' servers answer before a commit is written; here it has to outlive them.
    stores = await open_stores(f"{mistreated.dsn}?synchronous_commit=on", random=Random(1))
    await stores.ask("truncate usage_records, usage_days")
    yield stores
    await stores.close()


async def delivered(store, batches):
    """Deliver as edges do: again and again, until each batch was taken."""

    async def one(batch):
        while True:
            try:
                return await store.record(batch)
            except StoreUnavailableError:
                await asyncio.sleep(0.02)

    async with asyncio.timeout(60):
        await asyncio.gather(*map(one, batches))


def batches(count):
    return [[replace(RECORD, request_id=f"r{n}-{m}") for m in range(20)] for n in range(count)]


async def counted(stores):
    (total,) = await usage_of_all(stores.usage, Days(DAY, DAY))
    (rows,) = await stores.ask("select count(*)::integer as count from usage_records")
    return total.requests, rows["count"]


async def test_frozen(stores, mistreated):
    """While Postgres is frozen recording and asking end at the deadline, and all heals at once."""
    store = UsageStore(stores.database, deadline_s=0.3)
    assert await store.record([RECORD]) == 1
    with frozen(mistreated):
        calls = [store.record([replace(RECORD, request_id=f"r{n}")]) for n in range(20)]
        calls += [store.of_all(Days(DAY, DAY)) for _ in range(20)]
        async with asyncio.timeout(5):
            ended = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(each) for each in ended} == {StoreUnavailableError}
    await delivered(store, [[replace(RECORD, request_id=f"r{n}") for n in range(20)]])
    assert await counted(stores) == (21, 21)


async def test_killed_again_and_again(stores, mistreated):
    """Of batches whose commit nobody can be sure of, every record counts once."""
    store = UsageStore(stores.database, deadline_s=1)
    delivering = asyncio.create_task(delivered(store, batches(200)))
    for _ in range(2):
        await some_are_there(stores, delivering)
        os.kill(postmaster(mistreated), signal.SIGKILL)
        mistreated.wait(20)
        await asyncio.to_thread(mistreated.start)
    await delivering
    assert await counted(stores) == (4000, 4000)
    assert await stores.usage.recompute(Days(DAY, DAY)) == 0


async def some_are_there(stores, delivering):
    """Return in the midst of the delivery."""
    before = (await stores.ask("select count(*) as count from usage_records"))[0]["count"]
    while not delivering.done():
        (row,) = await stores.ask("select count(*) as count from usage_records")
        if row["count"] > before:
            return
