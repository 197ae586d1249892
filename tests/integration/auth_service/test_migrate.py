import asyncio
import socket

import asyncpg
import pytest
from typer.testing import CliRunner

from auth_service import migrate as runner
from auth_service.errors import SchemaError, StoreUnavailableError
from auth_service.migrate import Migration, check, load, migrate
from fastrun.cli.app import make_app
from fastrun.cli.errors import CommandError

SLOW = Migration(1, "0001_slow.sql", "create table a (n integer); select pg_sleep(0.2);")
INDEX = Migration(
    2, "0002_index.sql", "-- no-transaction\ncreate index concurrently if not exists ix on a (n)"
)


async def ask(dsn, sql):
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def test_ours(empty_database):
    """The service's own migrations make the schema that it needs, once."""
    with pytest.raises(SchemaError, match=r"lacks 0001_.*\.sql: run fastrun migrate"):
        await check(empty_database)
    assert await migrate(empty_database) == [migration.name for migration in load()]
    assert await migrate(empty_database) == []
    await check(empty_database)


async def test_four_at_once(empty_database):
    """Of four runners at once each file is applied by one; none fails, waits for ever or repeats."""
    runs = await asyncio.gather(*[migrate(empty_database, [SLOW, INDEX]) for _ in range(4)])
    assert sorted(runs) == [[], [], [], [SLOW.name, INDEX.name]]


async def test_failing_file(empty_database):
    """A failing file is undone as a whole, those before it stay, and the next run goes on."""
    bad = Migration(2, "0002_bad.sql", "create table b (n integer); select 1/0;")
    with pytest.raises(SchemaError, match=r"0002_bad\.sql failed: division by zero"):
        await migrate(empty_database, [SLOW, bad])
    assert await ask(empty_database, "select to_regclass('b')") is None
    good = Migration(2, "0002_bad.sql", "create table b (n integer);")
    assert await migrate(empty_database, [SLOW, good]) == ["0002_bad.sql"]


async def test_edited_file(empty_database):
    """An applied file that was edited stops runners and services."""
    await migrate(empty_database, [SLOW])
    edited = [Migration(1, SLOW.name, "create table another (n integer);")]
    for refused in (migrate(empty_database, edited), check(empty_database, edited)):
        with pytest.raises(SchemaError, match="was edited after it was applied"):
            await refused


async def test_newer_schema(empty_database):
    """A service goes on beside a schema newer than itself."""
    await migrate(empty_database, [SLOW, INDEX])
    await check(empty_database, [SLOW])
    assert await migrate(empty_database, [SLOW]) == []


async def test_lock_timeout(empty_database, monkeypatch):
    """A file gives up rather than make the service's queries queue behind it."""
    monkeypatch.setitem(runner._SETTINGS, "lock_timeout", "50ms")
    await migrate(empty_database, [SLOW])
    alter = Migration(2, "0002_alter.sql", "alter table a add column m integer;")
    reader = await asyncpg.connect(empty_database)
    try:
        async with reader.transaction():
            await reader.execute("select * from a")
            with pytest.raises(SchemaError, match=r"0002_alter\.sql waited .* for a lock"):
                await migrate(empty_database, [SLOW, alter])
    finally:
        await reader.close()
    assert await migrate(empty_database, [SLOW, alter]) == [alter.name]


async def test_statement_timeout(empty_database, monkeypatch):
    """A file that holds its locks too long is undone, and said to have failed."""
    monkeypatch.setitem(runner._SETTINGS, "statement_timeout", "50ms")
    with pytest.raises(SchemaError, match=r"0001_slow\.sql failed: .*statement timeout"):
        await migrate(empty_database, [SLOW])
    assert await ask(empty_database, "select to_regclass('a')") is None


async def test_other_runner_stays(empty_database, monkeypatch):
    """A runner does not wait for another one for ever."""
    monkeypatch.setattr(runner, "LOCK_S", 0.2)
    other = await asyncpg.connect(empty_database)
    try:
        await other.execute("select pg_advisory_lock($1)", runner._ADVISORY_LOCK)
        with pytest.raises(SchemaError, match="another fastrun migrate has been running"):
            await migrate(empty_database)
    finally:
        await other.close()


def test_unreachable():
    """Without Postgres both say so, without the password; and the command what to do."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dsn = f"postgresql://fastrun:secret@127.0.0.1:{closed.getsockname()[1]}/postgres"
        for refused in (migrate(dsn), check(dsn)):
            with pytest.raises(StoreUnavailableError, match="cannot reach Postgres") as told:
                asyncio.run(refused)
            assert "secret" not in str(told.value)
        done = CliRunner().invoke(make_app("migrate"), ["migrate"], env={"DATABASE_URL": dsn})
        assert isinstance(done.exception, CommandError)
        assert str(done.exception).endswith(": start it, or correct DATABASE_URL")


async def test_wrong_dsn():
    """A DATABASE_URL that is none is named."""
    with pytest.raises(SchemaError, match="DATABASE_URL cannot be used"):
        await check("mysql://localhost/x")
