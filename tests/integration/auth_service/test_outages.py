"""The stores while Postgres is frozen, killed, restarted or crowded."""

import asyncio
import os
import signal
from random import Random

import asyncpg
import pytest
from auth_stores import open_stores
from postgres_outages import frozen, postmaster

from auth_service.database import Database
from auth_service.errors import StoreUnavailableError

SHA256 = b"s" * 32


@pytest.fixture
async def stores(mistreated):
    stores = await open_stores(mistreated.dsn, random=Random(1), deadline_s=0.3)
    yield stores
    await stores.close()


async def healed(stores):
    """Ask until there is an answer."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await stores.lookup.verify(SHA256)
            except StoreUnavailableError:
                await asyncio.sleep(0.01)


async def timed(awaitable):
    """How long a call that must fail takes, in seconds."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    with pytest.raises(StoreUnavailableError):
        await awaitable
    return loop.time() - start


async def test_frozen(stores, mistreated):
    """While Postgres is frozen every lookup ends at its deadline; all heals when it thaws."""
    assert await stores.lookup.verify(SHA256) is None
    with frozen(mistreated):
        # Far under the minute that the driver would take; more than the pool has connections.
        took = await asyncio.gather(*[timed(stores.lookup.verify(SHA256)) for _ in range(50)])
        assert max(took) < 5
    assert await healed(stores) is None


async def test_frozen_before_connecting(stores, mistreated):
    """The deadline holds as well when there is no connection yet."""
    with frozen(mistreated):
        assert await timed(stores.lookup.verify(SHA256)) < 5
    assert await healed(stores) is None


async def test_nothing_piles_up(stores, mistreated):
    """What was left behind at the deadline ends by itself while Postgres stays frozen."""
    await stores.lookup.verify(SHA256)
    with frozen(mistreated):
        for _ in range(3):
            await timed(stores.lookup.verify(SHA256))
        async with asyncio.timeout(20):
            while stores.database._running:
                await asyncio.sleep(0.01)


async def test_frozen_at_close(mistreated):
    """The pool can be closed while Postgres is frozen."""
    pool = await asyncpg.create_pool(mistreated.dsn, min_size=1, command_timeout=1)
    database = Database(pool, deadline_s=0.3)
    with frozen(mistreated):
        async with asyncio.timeout(20):
            await timed(database.within(lambda connection: connection.fetch("select 1")))
            await database.close()


async def test_restarted(stores, mistreated):
    """While Postgres is down calls fail at once; all heals when it is back."""
    assert await stores.lookup.verify(SHA256) is None
    os.kill(postmaster(mistreated), signal.SIGKILL)
    mistreated.wait(20)
    with pytest.raises(StoreUnavailableError, match="Postgres"):
        await stores.lookup.verify(SHA256)
    with pytest.raises(StoreUnavailableError, match="Postgres"):
        await stores.accounts.list()
    await asyncio.to_thread(mistreated.start)
    assert await healed(stores) is None


async def test_sessions_ended(stores, mistreated):
    """When Postgres ends all sessions, the pool makes new ones."""
    await stores.lookup.verify(SHA256)
    connection = await asyncpg.connect(mistreated.dsn)
    await connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'fastrun-auth'"
    )
    await connection.close()
    assert await healed(stores) is None


async def test_abandoned_caller(stores, mistreated):
    """A caller that leaves gives its connection back."""
    for _ in range(20):
        task = asyncio.create_task(stores.lookup.verify(SHA256))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await stores.lookup.verify(SHA256) is None


async def test_nobody_there():
    """Stores over a Postgres that is not there open, and say so when asked."""
    stores = await open_stores("postgresql://fastrun:x@127.0.0.1:9/x", random=Random(1))
    try:
        with pytest.raises(StoreUnavailableError):
            await stores.lookup.verify(SHA256)
    finally:
        await stores.close()
