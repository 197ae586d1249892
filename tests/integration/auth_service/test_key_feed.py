"""What changes about keys, as watchers are told it: in order, without gaps, and only if it is so."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from random import Random

import asyncpg
import pytest
from auth_stores import new_key, open_stores
from postgres_outages import frozen, postmaster

from auth_service import key_feed
from auth_service.errors import StoreUnavailableError
from auth_service.key_events import KeyEventLog
from auth_service.key_feed import KeyFeed
from auth_service.limits import Limits
from fastrun.service import api_key

RANDOM = Random(5)


@asynccontextmanager
async def following(stores):
    """A feed that runs."""
    feed = KeyFeed(stores.dsn, stores.database)
    feed.start()
    try:
        yield feed
    finally:
        await feed.close()


@pytest.fixture
async def feed(stores):
    async with following(stores) as feed:
        yield feed


async def read(feed, after, until):
    """Watch until a sequence is confirmed; all events and whether there was a reset."""
    events, was_reset = [], False
    async with asyncio.timeout(20), aclosing(feed.watch(after)) as updates:
        async for update in updates:
            events += update.events
            was_reset |= update.reset
            if update.confirmed >= until:
                return events, was_reset
    raise AssertionError("the watch ended")


async def watched(feed, after=0):
    """Watch again and again, as an edge does, until there is an update."""
    async with asyncio.timeout(20):
        while True:
            try:
                async with aclosing(feed.watch(after)) as updates:
                    return await anext(updates)
            except StoreUnavailableError:
                await asyncio.sleep(0.01)


async def last_sequence(stores):
    (row,) = await stores.ask("select sequence from key_event_counter")
    return row["sequence"]


async def test_every_change(stores, feed):
    """Every change that an edge has to know of is an event, with the states after it."""
    await watched(feed)
    account_id = (await stores.accounts.create("one")).account_id
    old = await stores.keys.issue("one", new_key(api_key.generate(RANDOM)))
    await stores.accounts.approve("one")
    await stores.accounts.set_limits("one", Limits(5))
    await stores.keys.set_limits(old.key_id, Limits(5))
    new = await stores.keys.rotate(old.key_id, new_key(api_key.generate(RANDOM)), 60)
    await stores.keys.revoke(old.key_id)
    await stores.accounts.suspend("one")
    await stores.accounts.close("one")
    events, _ = await read(feed, 1, await last_sequence(stores))
    assert {event.account_id for event in events} == {account_id}
    assert [(each.key_id, each.account_state, each.key_state) for each in events] == [
        (None, "approved", None),
        (None, "approved", None),  # limits
        (old.key_id, "approved", "active"),  # limits
        (new.key_id, "approved", "active"),
        (old.key_id, "approved", "active"),  # its expiry
        (old.key_id, "approved", "revoked"),
        (None, "suspended", None),
        (None, "closed", None),
        (new.key_id, "closed", "revoked"),
    ]


async def test_by_hand(stores, feed):
    """A change that somebody makes in the database itself is an event as well."""
    await stores.accounts.create("one")
    await stores.keys.issue("one", new_key(api_key.generate(RANDOM)))
    await stores.ask("update keys set revoked_at = now()")
    events, _ = await read(feed, 1, 2)
    assert [event.key_state for event in events] == ["revoked"]


async def test_no_gaps_in_commit_order(stores, feed):
    """With many writers, of whom one takes all back, every watcher is told every change once, in order."""
    await watched(feed)
    names = [f"account {number}" for number in range(8)]
    for name in names:
        await stores.accounts.create(name)
    key = await stores.keys.issue(names[0], new_key(api_key.generate(RANDOM)))
    clock = iter(range(1_000_000))
    made = []  # (began, ended, account id, state)

    async def write(name):
        for number in range(12):
            began = next(clock)
            change = stores.accounts.suspend if number % 2 else stores.accounts.approve
            account = await change(name)
            made.append((began, next(clock), account.account_id, account.state))

    async def fail():
        connection = await asyncpg.connect(stores.dsn)
        for _ in range(12):
            undone = connection.transaction()
            await undone.start()
            await connection.execute("set constraints all immediate")
            await connection.execute("update keys set limits = '{\"a\": 1}'")
            await undone.rollback()
        await connection.close()

    last = 1 + 12 * len(names)
    watches = [read(feed, 1, last) for _ in range(3)]
    told, *others = await asyncio.gather(*watches, *map(write, names), fail())
    events, was_reset = told
    assert not was_reset
    assert [event.sequence for event in events] == list(range(2, last + 1))
    assert others[0] == others[1] == told
    assert await last_sequence(stores) == last
    # One that began after another had ended has the higher number.
    where = {}
    for event in events:
        where.setdefault((event.account_id, event.account_state), []).append(event.sequence)
    taken = {state: iter(sequences) for state, sequences in where.items()}
    numbered = [(began, ended, next(taken[of, state])) for began, ended, of, state in made]
    for _, ended, first in numbered:
        assert all(first < second for began, _, second in numbered if began > ended)
    assert (await stores.keys.list())[0].limits == key.limits


async def test_counter_is_held_for_the_commit_alone(stores):
    """A transaction that is open for long keeps nobody else from changing something."""
    await stores.accounts.create("one")
    await stores.accounts.create("two")
    connection = await asyncpg.connect(stores.dsn)
    async with connection.transaction():
        await connection.execute("update accounts set state = 'approved' where name = 'one'")
        await stores.accounts.approve("two")
    await connection.close()
    rows = await stores.ask(
        "select name from key_events join accounts on id = account_id order by sequence"
    )
    assert [row["name"] for row in rows] == ["two", "one"]


async def changes(stores, count):
    """Make so many events."""
    await stores.accounts.create("one")
    for number in range(count):
        await (stores.accounts.suspend if number % 2 else stores.accounts.approve)("one")


@pytest.mark.parametrize("remembered", [2, 10_000])
async def test_resume(stores, monkeypatch, remembered):
    """A watch goes on after any sequence, whether the process remembers it or reads it again."""
    monkeypatch.setattr(key_feed, "KeyEventLog", lambda last: KeyEventLog(last, remembered))
    monkeypatch.setattr(key_feed, "PAGE", 3)
    async with following(stores) as feed:
        await watched(feed)
        await changes(stores, 10)
        for after in range(1, 11):
            events, was_reset = await read(feed, after, 10)
            assert [event.sequence for event in events] == list(range(after + 1, 11))
            assert not was_reset


@pytest.mark.parametrize("after", [0, 3, 11, (1 << 64) - 1])
async def test_reset(stores, feed, after):
    """Who knows nothing, or what is pruned, or another database, has to ask all anew."""
    await changes(stores, 10)
    await stores.ask(stores.database.sql["prune_key_events"], 6)
    async with following(stores) as fresh:  # remembers nothing of it
        update = await watched(fresh, after)
    assert (update.events, update.confirmed, update.reset) == ([], 10, True)


async def test_pruned_to_the_edge(stores, feed):
    """The oldest event that is kept can still be resumed from."""
    await changes(stores, 10)
    await stores.ask(stores.database.sql["prune_key_events"], 6)
    async with following(stores) as fresh:
        events, was_reset = await read(fresh, 4, 10)
    assert [event.sequence for event in events] == [5, 6, 7, 8, 9, 10]
    assert not was_reset


async def test_confirmed_without_events(feed):
    """A watcher is told again and again how far it has been told, also if nothing happens."""
    async with asyncio.timeout(20), aclosing(feed.watch(0)) as updates:
        confirmed = [(await anext(updates)).confirmed for _ in range(3)]
    assert confirmed == [0, 0, 0]


async def test_old_reads_are_not_told(feed, monkeypatch):
    """What was read long ago, because this process stood still, confirms nothing."""
    await watched(feed)
    monkeypatch.setattr(key_feed, "STALE_S", 0)
    async with aclosing(feed.watch(0)) as updates:
        update = asyncio.ensure_future(anext(updates))
        for _ in range(3):
            await feed._next.wait()
        assert not update.done()
        monkeypatch.setattr(key_feed, "STALE_S", 1)
        await update


async def test_one_connection(stores, feed):
    """Fifty watchers need one connection of their own together, and none of the pool."""
    await watched(feed)
    async with AsyncExitStack() as stack:
        for _ in range(50):
            updates = await stack.enter_async_context(aclosing(feed.watch(0)))
            await anext(updates)
        (row,) = await stores.ask(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and query not like '%prune%'"
            " and query like '%key_event_counter%' and pid <> pg_backend_pid()"
        )
    assert row["count"] <= 2  # the pruning's is of the pool


@pytest.fixture
async def roughly(mistreated):
    """Stores and a feed over a server that may be mistreated."""
    stores = await open_stores(mistreated.dsn, random=RANDOM)
    async with following(stores) as feed:
        yield stores, feed
    await stores.close()


async def ended(updates):
    """Read on until the watch ends, as it has to."""

    async def all_of_it():
        async for _ in updates:
            pass

    with pytest.raises(StoreUnavailableError):
        await asyncio.wait_for(all_of_it(), 20)


async def test_frozen(roughly, mistreated):
    """While Postgres is frozen a watch ends, and none begins; thawed, it goes on where it was."""
    stores, feed = roughly
    account = await stores.accounts.create("frozen")
    await stores.accounts.approve("frozen")  # 0 would be a watch that knows nothing yet
    before = await last_sequence(stores)
    await read(feed, 0, before)
    async with aclosing(feed.watch(before)) as updates:
        await anext(updates)
        with frozen(mistreated):
            await ended(updates)
            with pytest.raises(StoreUnavailableError):
                await anext(feed.watch(before))
    assert (await watched(feed, before)).confirmed == before
    await stores.accounts.suspend("frozen")
    events, _ = await read(feed, before, before + 1)
    assert [event.account_id for event in events] == [account.account_id]


async def test_killed(roughly, mistreated):
    """When Postgres is killed a watch ends, and one can begin again once it is back."""
    _, feed = roughly
    await watched(feed)
    async with aclosing(feed.watch(0)) as updates:
        await anext(updates)
        os.kill(postmaster(mistreated), signal.SIGKILL)
        mistreated.wait(20)
        await ended(updates)
    await asyncio.to_thread(mistreated.start)
    await watched(feed)


async def test_sessions_ended(roughly, mistreated):
    """When Postgres ends the listener's session a watch ends, and one can begin again."""
    stores, feed = roughly
    await watched(feed)
    async with aclosing(feed.watch(0)) as updates:
        await anext(updates)
        await stores.ask(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'fastrun-auth'"
        )
        await ended(updates)
    await watched(feed)


async def test_a_fault_ends_no_feed(stores, monkeypatch):
    """What nobody expected, of ours or of the driver's, is tried again like an outage."""
    faults, connect = [AttributeError("transport")], asyncpg.connect

    async def sometimes(*args, **kwargs):
        if faults:
            raise faults.pop()
        return await connect(*args, **kwargs)

    monkeypatch.setattr(asyncpg, "connect", sometimes)
    async with following(stores) as feed:
        await watched(feed)


async def test_events_are_pruned_after_a_fault(stores, monkeypatch):
    """Another process that prunes the same may be in the way; the next time it is not."""
    faults, within = [asyncpg.DeadlockDetectedError("deadlock detected")], stores.database.within
    pruned = asyncio.Event()

    async def sometimes(work):
        if faults:
            raise faults.pop()
        await within(work)
        pruned.set()

    monkeypatch.setattr(stores.database, "within", sometimes)
    monkeypatch.setattr(key_feed, "PRUNE_S", 0)
    async with following(stores), asyncio.timeout(20):
        await pruned.wait()


async def test_nobody_there():
    """A feed of a Postgres that is not there says so, and can be closed."""
    stores = await open_stores("postgresql://fastrun:x@127.0.0.1:9/x", random=Random(1))
    async with following(stores) as feed:
        with pytest.raises(StoreUnavailableError):
            await anext(feed.watch(0))
    await stores.close()


async def test_closed(stores):
    """A feed that is told to end ends its watches, which is no failure."""
    async with following(stores) as feed:
        await watched(feed)
        updates = aiter(feed.watch(0))
        await anext(updates)
        waiting = asyncio.create_task(anext(updates, None))
    async with asyncio.timeout(20):
        while (update := await waiting) is not None:
            waiting = asyncio.create_task(anext(updates, None))
    assert update is None
