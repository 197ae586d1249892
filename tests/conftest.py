"""What all tests share: one Postgres per session, and a migrated database for each test."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import hypothesis
import pytest

from auth_service.migrate import migrate
from fastrun.local.postgres import DATABASE, Postgres

TEMPLATE = "migrated"

pytest_plugins = ("stacks", "node")

# The same examples in each run, so that a change is judged by what it changes; others on demand.
# Without a deadline for each example, which a loaded machine misses.
hypothesis.settings.register_profile(
    "fastrun", deadline=None, derandomize="FASTRUN_TEST_RANDOM" not in os.environ
)
hypothesis.settings.load_profile("fastrun")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server of the session's own, never the one in DATABASE_URL: tests create and drop."""
    folder = Path(tempfile.mkdtemp(prefix="fastrun-test-"))  # tmp_path is closed to user nobody
    server = Postgres(folder, durable=False, remove=folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def template(postgres: Postgres) -> str:
    """The name of a migrated database to clone."""

    async def make() -> None:
        connection = await asyncpg.connect(postgres.dsn)
        await connection.execute(f"create database {TEMPLATE}")
        await connection.close()
        await migrate(_dsn(postgres, TEMPLATE))

    asyncio.run(make())
    return TEMPLATE


@pytest.fixture
async def empty_database(postgres: Postgres) -> AsyncIterator[str]:
    """The DSN of a database with nothing in it."""
    async for dsn in _database(postgres, "template0"):
        yield dsn


@pytest.fixture
async def database(postgres: Postgres, template: str) -> AsyncIterator[str]:
    """The DSN of a migrated database without rows."""
    async for dsn in _database(postgres, template):
        yield dsn


async def _database(postgres: Postgres, template: str) -> AsyncIterator[str]:
    name = f"test_{uuid4().hex}"
    connection = await asyncpg.connect(postgres.dsn)
    try:
        await connection.execute(f"create database {name} template {template} strategy file_copy")
        yield _dsn(postgres, name)
        await connection.execute(f"drop database {name} with (force)")
    finally:
        await connection.close()


def _dsn(postgres: Postgres, database: str) -> str:
    return postgres.dsn.removesuffix(DATABASE) + database
