"""What the tests of accounts and keys share."""

from collections.abc import AsyncIterator
from random import Random

import pytest

from auth_service.keys import Pepper, Peppers
from auth_service.store import Store

PEPPERS = Peppers(Pepper(1, b"p" * 32))


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    """A store over a database without rows."""
    store = await Store.open(database, PEPPERS, Random(1))
    yield store
    await store.close()
