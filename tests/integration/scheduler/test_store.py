"""The row of the leader and the known models, in a real Postgres."""

import asyncio
import shutil
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
from postgres_outages import frozen

from auth_service.migrate import migrate
from fastrun.local.postgres import Postgres
from fastrun.v1.worker_pb2 import ModelCard
from scheduler.store import LEADS_S, Store, StoreUnavailableError

LIMIT_S = 20


@pytest.fixture
async def stores(database):
    """Those of two schedulers."""
    made = [Store(database, holder, deadline_s=LIMIT_S) for holder in ("a", "b")]
    yield made
    for store in made:
        store.close()


async def hold(store, least=1, term=0, *, may_take=True):
    take_until = datetime.now(UTC) + timedelta(hours=1 if may_take else -1)
    return await store.hold(least=least, term=term, take_until=take_until)


async def set_row(dsn, **fields):
    """Change the row behind everybody's back."""
    connection = await asyncpg.connect(dsn)
    names = ", ".join(f"{name} = ${number}" for number, name in enumerate(fields, 1))
    await connection.execute(f"update scheduler_leader set {names}", *fields.values())
    await connection.close()


async def test_one_of_many_gets_the_row(database):
    """However many ask at once; the others learn the term and how long it is held."""
    stores = [Store(database, f"s{number}", deadline_s=LIMIT_S) for number in range(8)]
    await asyncio.gather(*(store.remember([], term=1) for store in stores))  # connected
    rows = await asyncio.gather(*(hold(store) for store in stores))
    assert sum(row.ours for row in rows) == 1
    again = await asyncio.gather(*(hold(store) for store in stores))
    assert {row.term for row in again} == {1}
    assert all(0 < row.left_s <= LEADS_S for row in again)
    for store in stores:
        store.close()


async def test_who_has_it_renews_it(stores):
    """With the same term; what is known of models is told to all but to who goes on leading."""
    first, second = stores
    assert (await hold(first)).cards == ()
    row = await hold(first, 1, 1)
    assert (row.term, row.ours, row.cards) == (1, True, None)
    other = await hold(second)
    assert (other.term, other.ours, other.cards) == (1, False, ())


async def test_each_taking_raises_the_term(stores):
    """Once it is not renewed, and not before."""
    first, second = stores
    await hold(first)
    async with asyncio.timeout(LIMIT_S):
        while not (row := await hold(second)).ours:
            assert row.left_s > 0
            await asyncio.sleep(row.left_s)
    assert row.term == 2
    late = await hold(first, 1, 1)
    assert (late.term, late.ours) == (2, False)


async def test_a_row_that_was_given_up_is_taken_at_once(stores):
    """Also by one that is to be patient; nobody else's is given up."""
    first, second = stores
    await hold(first)
    await second.release()
    assert not (await hold(second, may_take=False)).ours
    await first.release()
    row = await hold(second, may_take=False)
    assert (row.term, row.ours) == (2, True)


async def test_what_was_asked_before_does_not_take_back_a_row_that_was_given_up(stores, database):
    """A renewal that is still under way is over before the row is given up."""
    first, second = stores
    await hold(first)
    other = await asyncpg.connect(database)
    blocked = other.transaction()
    await blocked.start()
    await other.execute("lock table known_models in access exclusive mode")
    renewing = asyncio.create_task(hold(first, 1, 1))
    async with asyncio.timeout(LIMIT_S):
        while not await other.fetchval("select exists (select from pg_locks where not granted)"):
            await asyncio.sleep(0.01)
    renewing.cancel()
    await asyncio.gather(renewing, return_exceptions=True)
    releasing = asyncio.create_task(first.release())
    # Nothing but the renewal keeps it: without that it ends in a moment.
    await asyncio.wait({releasing}, timeout=0.3)
    await blocked.rollback()
    await releasing
    await other.close()
    row = await hold(second, may_take=False)
    assert (row.ours, row.term) == (True, 2)


async def test_a_row_that_has_ended_is_left_to_its_holder_for_a_while(stores, database):
    """By one that could not ask just before: neither could its holder."""
    first, second = stores
    await hold(first)
    connection = await asyncpg.connect(database)
    await connection.execute("update scheduler_leader set expires_at = now() - interval '1 h'")
    await connection.close()
    assert not (await hold(second, may_take=False)).ours
    assert (await hold(first, 1, 1)).ours
    assert not (await hold(second)).ours


async def test_the_term_is_above_any_heard_of(stores, database):
    """A row that was restored from a backup is taken with a term above what peers have seen."""
    first, second = stores
    assert (await hold(first, 8)).term == 8
    await set_row(database, term=3)
    row = await hold(first, 8, 8)
    assert (row.term, row.ours) == (8, True)
    await first.release()
    await set_row(database, term=3)
    assert (await hold(second, 9)).term == 9


async def test_a_taking_that_was_not_heard_of_is_kept(stores):
    """Its answer was lost: nobody has been told that term."""
    first, _ = stores
    await hold(first)
    row = await hold(first, 1, 0)
    assert (row.term, row.ours, row.cards) == (1, True, ())


async def test_models_are_kept_by_the_leader_alone(stores):
    """One that has lost the row changes nothing."""
    first, second = stores
    cards = [ModelCard(model="b", context_length=7, features=["tools"]), ModelCard(model="a")]
    await hold(first)
    await first.remember(cards, term=1)
    await second.remember([ModelCard(model="c")], term=1)
    await first.remember([ModelCard(model="d")], term=2)
    assert sorted((await hold(second)).cards, key=lambda card: card.model) == cards[::-1]
    await first.remember([ModelCard(model="a", context_length=9)], term=1)
    assert not await second.forget("b", term=1)
    assert await first.forget("b", term=1)
    assert (await hold(second)).cards == (ModelCard(model="a", context_length=9),)


async def test_without_tables_nobody_knows(empty_database):
    """Migrations may be on their way."""
    store = Store(empty_database, "a", deadline_s=LIMIT_S)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="scheduler_leader"):
            await hold(store)
    store.close()


async def test_a_frozen_postgres_holds_nobody(tmp_path_factory):
    """A call ends at its deadline, the loop goes on meanwhile, and the next ones work again."""
    folder = Path(tempfile.mkdtemp(prefix="fastrun-test-"))
    server = Postgres(folder, durable=False, remove=folder)
    try:
        dsn = await asyncio.to_thread(server.start)
        await migrate(dsn)
        store = Store(dsn, "a", deadline_s=0.3)
        turns = 0

        async def turn():
            nonlocal turns
            while True:
                await asyncio.sleep(0.01)
                turns += 1

        async with asyncio.timeout(LIMIT_S):
            while not (await try_hold(store)):
                pass
        turning = asyncio.create_task(turn())
        with frozen(server):
            for _ in range(2):
                before = time.monotonic(), turns
                with pytest.raises(StoreUnavailableError, match="did not answer"):
                    await hold(store)
                assert time.monotonic() - before[0] < LIMIT_S
                assert turns > before[1]
        async with asyncio.timeout(LIMIT_S):
            while not (await try_hold(store)):
                pass
        turning.cancel()
        store.close()
    finally:
        await asyncio.to_thread(server.stop)
        shutil.rmtree(folder, ignore_errors=True)


async def try_hold(store):
    try:
        return (await hold(store)).ours
    except StoreUnavailableError:
        return False
