"""What can be seen of a database without changing it, for those who look for what is wrong."""

from dataclasses import dataclass

from auth_service import migrate, pepper_record
from auth_service.database import Connection, Database
from auth_service.keys import Peppers


@dataclass(frozen=True, slots=True)
class Seen:
    """A database that can be reached and has our schema."""

    now: float
    """By Postgres' clock, in seconds since 1970."""
    read_only: bool
    """It takes no writes, as one that only follows another."""
    pepper_fits: bool | None
    """Whether the stored keys were made with our peppers; None: that is not known, or none is."""
    former_keys: int
    """How many keys that have not ended were made with former ones; 0: none, or not known."""
    retired_keys: int
    """How many of them with those that are called retired."""


async def look(url: str, peppers: Peppers | None) -> Seen:
    """Look at a database.

    Raises:
        SchemaError: its schema is older than this code, or the address is none.
        StoreUnavailableError: it cannot be reached.
    """
    await migrate.check(url)
    database = await Database.open(url, pool_size=1)

    async def work(connection: Connection) -> Seen:
        found = await connection.fetchrow(database.sql["inspect"])
        assert found is not None
        stored = await pepper_record.recorded(database, connection)
        if peppers is None or not stored:
            return Seen(found["now"], found["read_only"], None, 0, 0)
        former, retired = [
            await pepper_record.keys_of(database, connection, numbers)
            for numbers in (peppers.former, peppers.retired)
        ]
        fits = pepper_record.fit(peppers, stored)
        return Seen(found["now"], found["read_only"], fits, former, retired)

    try:
        return await database.within(work)
    finally:
        await database.close()
