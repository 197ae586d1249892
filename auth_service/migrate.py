"""Brings the database's schema forward: numbered files, each applied once, as a whole, in order.

A file is one transaction. One that starts with `-- no-transaction` holds a single statement that
cannot run in one (such as `create index concurrently`) and that can be run again if it failed.
The connection must reach Postgres itself: a pooler that shares sessions would lose the lock.
"""

import asyncio
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

import asyncpg

from auth_service.database import OUTAGES
from auth_service.errors import SchemaError, StoreUnavailableError

CONNECT_S = 5.0
LOCK_POLL_S = 0.1
LOCK_S = 60.0  # what another runner may take for all of its files

# One of our migrations waits this long at most behind running queries, so that they do not queue
# up behind it; and it holds its locks this long at most.
_SETTINGS = {
    "application_name": "fastrun-migrate",
    "lock_timeout": "5s",
    "statement_timeout": "60s",
    "client_min_messages": "warning",
}
_ADVISORY_LOCK = 0x66_72_6D_69_67  # any number that nobody else takes

_TABLE = """
create table if not exists schema_migrations (
    version integer primary key,
    name text not null,
    sha256 text not null,
    applied_at timestamptz not null default now()
)
"""
_RECORD = "insert into schema_migrations (version, name, sha256) values ($1, $2, $3)"


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered .sql file."""

    version: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        """What tells an edited file from the one that was applied."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def in_transaction(self) -> bool:
        """Whether the file is applied as a whole or not at all."""
        return not self.sql.startswith("-- no-transaction")


def load(folder: Traversable | None = None) -> tuple[Migration, ...]:
    """The migrations of a folder in order; by default those of auth_service.

    Raises:
        SchemaError: the .sql files are not named NNNN_WORDS.sql, counted from 0001.
    """
    folder = folder or files("auth_service") / "migrations"
    found = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=_name)
    migrations = []
    for version, file in enumerate(found, start=1):
        if not re.fullmatch(rf"{version:04}_\w+\.sql", file.name):
            raise SchemaError(f"{file.name} should be the migration number {version:04}")
        migrations.append(Migration(version, file.name, file.read_text(encoding="utf-8")))
    return tuple(migrations)


def pending(migrations: Sequence[Migration], applied: Mapping[int, str]) -> list[Migration]:
    """The migrations still to apply.

    Args:
        migrations: in order.
        applied: SHA-256 by version; versions that this code does not know are a newer code's.

    Raises:
        SchemaError: an applied file was edited, or one is older than an applied one.
    """
    left = []
    for migration in migrations:
        if migration.version not in applied:
            left.append(migration)
        elif applied[migration.version] != migration.sha256:
            raise SchemaError(
                f"{migration.name} was edited after it was applied: "
                "restore it, and put the change into a new file"
            )
    if left and left[0].version < max(applied, default=0):
        raise SchemaError(
            f"{left[0].name} was never applied, yet a newer one was: give it the next number"
        )
    return left


async def migrate(dsn: str, migrations: Sequence[Migration] | None = None) -> list[str]:
    """Apply what is pending; safe beside other runners and beside running services.

    Returns:
        The names of the files applied by this call.

    Raises:
        SchemaError: a file failed (and was undone, if in a transaction) or must not be applied.
        StoreUnavailableError: Postgres cannot be reached.
    """
    migrations = load() if migrations is None else migrations
    connection = await _connect(dsn)
    try:
        await _lock(connection)
        await connection.execute(_TABLE)
        names = []
        for migration in pending(migrations, await _applied(connection)):
            await _apply(connection, migration)
            names.append(migration.name)
        return names
    except OUTAGES as error:
        raise StoreUnavailableError(f"lost Postgres while migrating: {error}") from error
    finally:
        await _close(connection)


async def check(dsn: str, migrations: Sequence[Migration] | None = None) -> None:
    """Make sure that the schema is at least as new as this code.

    Raises:
        SchemaError: it is older, or was made from edited files.
        StoreUnavailableError: Postgres cannot be reached.
    """
    migrations = load() if migrations is None else migrations
    connection = await _connect(dsn)
    try:
        left = pending(migrations, await _applied(connection))
    except OUTAGES as error:
        raise StoreUnavailableError(f"lost Postgres: {error}") from error
    finally:
        await _close(connection)
    if left:
        raise SchemaError(f"the database lacks {left[0].name}: run fastrun migrate")


def _name(file: Traversable) -> str:
    return file.name


async def _connect(dsn: str) -> asyncpg.Connection:
    try:
        return await asyncpg.connect(dsn, timeout=CONNECT_S, server_settings=_SETTINGS)
    except asyncpg.ClientConfigurationError as error:
        raise SchemaError(f"DATABASE_URL cannot be used: {error}") from error
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        reason = str(error) or "it does not answer"
        raise StoreUnavailableError(f"cannot reach Postgres: {reason}") from error


async def _close(connection: asyncpg.Connection) -> None:
    try:
        await connection.close(timeout=CONNECT_S)
    except OUTAGES:
        connection.terminate()


async def _lock(connection: asyncpg.Connection) -> None:
    """Become the only runner, until the connection ends.

    A blocking pg_advisory_lock would hold a snapshot that `create index concurrently` of the
    runner with the lock waits for: a deadlock.
    """
    deadline = asyncio.get_running_loop().time() + LOCK_S
    while not await connection.fetchval("select pg_try_advisory_lock($1)", _ADVISORY_LOCK):
        if asyncio.get_running_loop().time() > deadline:
            raise SchemaError(
                f"another fastrun migrate has been running for {LOCK_S:.0f} s: wait for it to end"
            )
        await asyncio.sleep(LOCK_POLL_S)


async def _applied(connection: asyncpg.Connection) -> dict[int, str]:
    if await connection.fetchval("select to_regclass('schema_migrations')") is None:
        return {}
    rows = await connection.fetch("select version, sha256 from schema_migrations")
    return {row["version"]: row["sha256"] for row in rows}


async def _apply(connection: asyncpg.Connection, migration: Migration) -> None:
    record = (_RECORD, migration.version, migration.name, migration.sha256)
    try:
        if migration.in_transaction:
            async with connection.transaction():
                await connection.execute(migration.sql)
                await connection.execute(*record)
        else:
            await connection.execute("set statement_timeout = 0")  # it blocks nobody
            await connection.execute(migration.sql)
            await connection.execute("reset statement_timeout")
            await connection.execute(*record)
    except asyncpg.LockNotAvailableError as error:
        raise SchemaError(
            f"{migration.name} waited 5 s for a lock and was given up: run it again when no long "
            "transaction is open"
        ) from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        if isinstance(error, OUTAGES) and not isinstance(error, asyncpg.QueryCanceledError):
            raise
        raise SchemaError(f"{migration.name} failed: {error}") from error
