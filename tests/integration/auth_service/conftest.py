"""What the tests of the auth service share."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import pytest
from auth_stores import Stores, open_stores

from auth_service.migrate import migrate
from fastrun.local.postgres import Postgres


@pytest.fixture
async def stores(database: str) -> AsyncIterator[Stores]:
    """The stores of a database without rows."""
    stores = await open_stores(database, random=Random(1))
    yield stores
    await stores.close()


@pytest.fixture(scope="module")
def mistreated() -> Iterator[Postgres]:
    """A migrated server that may be frozen and killed."""
    folder = Path(tempfile.mkdtemp(prefix="fastrun-test-"))
    server = Postgres(folder, durable=False, remove=folder)
    try:
        asyncio.run(migrate(server.start()))
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
