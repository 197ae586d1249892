"""The store while Postgres is frozen, killed, restarted or crowded."""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from random import Random

import asyncpg
import pytest

from auth_service.errors import StoreUnavailableError
from auth_service.keys import Pepper, Peppers
from auth_service.migrate import migrate
from auth_service.store import Store
from fastrun.local.postgres import Postgres

PEPPERS = Peppers(Pepper(1, b"p" * 32))
SHA256 = b"s" * 32


@pytest.fixture(scope="module")
def server():
    """A server that may be mistreated."""
    folder = Path(tempfile.mkdtemp(prefix="fastrun-test-"))
    server = Postgres(folder, durable=False, remove=folder)
    try:
        asyncio.run(migrate(server.start()))
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def store(server):
    store = await Store.open(server.dsn, PEPPERS, Random(1), verify_deadline_s=0.3)
    yield store
    await store.close()


def postmaster(server):
    return int((server.folder / "data" / "postmaster.pid").read_text().splitlines()[0])


@contextmanager
def frozen(server):
    """Stop all processes of a server, and let them go on afterwards."""
    leader = postmaster(server)
    os.kill(leader, signal.SIGSTOP)
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, check=True)
    pairs = [map(int, line.split()) for line in listed.stdout.splitlines()]
    pids = [leader, *(pid for pid, parent in pairs if parent == leader)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


async def healed(store):
    """Ask until there is an answer."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await store.verify(SHA256)
            except StoreUnavailableError:
                await asyncio.sleep(0.01)


async def timed(awaitable):
    """How long a call that must fail takes, in seconds."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    with pytest.raises(StoreUnavailableError):
        await awaitable
    return loop.time() - start


async def test_frozen(store, server):
    """While Postgres is frozen every lookup ends at its deadline; all heals when it thaws."""
    assert await store.verify(SHA256) is None
    with frozen(server):
        # Far under the minute that the driver would take; more than the pool has connections.
        took = await asyncio.gather(*[timed(store.verify(SHA256)) for _ in range(50)])
        assert max(took) < 5
    assert await healed(store) is None


async def test_frozen_before_connecting(store, server):
    """The deadline holds as well when there is no connection yet."""
    with frozen(server):
        assert await timed(store.verify(SHA256)) < 5
    assert await healed(store) is None


async def test_nothing_piles_up(store, server):
    """What was left behind at the deadline ends by itself while Postgres stays frozen."""
    await store.verify(SHA256)
    with frozen(server):
        for _ in range(3):
            await timed(store.verify(SHA256))
        async with asyncio.timeout(20):
            while store._running:
                await asyncio.sleep(0.01)


async def test_frozen_at_close(server):
    """A store can be closed while Postgres is frozen."""
    pool = await asyncpg.create_pool(server.dsn, min_size=1, command_timeout=1)
    store = Store(pool, PEPPERS, Random(1), deadline_s=0.3)
    with frozen(server):
        async with asyncio.timeout(20):
            await timed(store.create_account("never"))
            await store.close()


async def test_restarted(store, server):
    """While Postgres is down calls fail at once; the store heals when it is back."""
    assert await store.verify(SHA256) is None
    os.kill(postmaster(server), signal.SIGKILL)
    server.wait(20)
    with pytest.raises(StoreUnavailableError, match="Postgres"):
        await store.verify(SHA256)
    with pytest.raises(StoreUnavailableError, match="Postgres"):
        await store.list_accounts()
    await asyncio.to_thread(server.start)
    assert await healed(store) is None


async def test_sessions_ended(store, server):
    """When Postgres ends all sessions, the store makes new ones."""
    await store.verify(SHA256)
    connection = await asyncpg.connect(server.dsn)
    await connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'fastrun-auth'"
    )
    await connection.close()
    assert await healed(store) is None


async def test_crowd(server):
    """A thousand lookups at once share the pool's connections."""
    store = await Store.open(server.dsn, PEPPERS, Random(1), verify_deadline_s=30)
    assert await asyncio.gather(*[store.verify(SHA256) for _ in range(1000)]) == [None] * 1000
    connection = await asyncpg.connect(server.dsn)
    used = await connection.fetchval(
        "select count(*) from pg_stat_activity where application_name = 'fastrun-auth'"
    )
    await connection.close()
    await store.close()
    assert 1 <= used <= 8


async def test_abandoned_caller(store, server):
    """A caller that leaves gives its connection back."""
    for _ in range(20):
        task = asyncio.create_task(store.verify(SHA256))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await store.verify(SHA256) is None


async def test_nobody_there():
    """A store over a Postgres that is not there opens, and says so when asked."""
    store = await Store.open("postgresql://fastrun:x@127.0.0.1:9/x", PEPPERS, Random(1))
    try:
        with pytest.raises(StoreUnavailableError):
            await store.verify(SHA256)
    finally:
        await store.close()
