"""Which peppers the stored keys were made with, so that a wrong one is told before it is used."""

from auth_service.database import Connection, Database
from auth_service.errors import PepperError
from auth_service.keys import Peppers


async def check(database: Database, peppers: Peppers) -> None:
    """Make sure that all stored keys were made with peppers that we have.

    Raises:
        PepperError: some were made with another one.
        StoreUnavailableError: Postgres cannot be asked.
    """
    ours = peppers.fingerprints()

    async def work(connection: Connection) -> dict[int, bytes]:
        found = await recorded(database, connection)
        for number in ours.keys() - found.keys():
            sql = database.sql["record_pepper_of_old_keys"]
            await connection.execute(sql, number, ours[number])
        return await recorded(database, connection)

    if not fit(ours, await database.within(work)):
        raise PepperError


async def recorded(database: Database, connection: Connection) -> dict[int, bytes]:
    """Return the fingerprints of the peppers that keys are stored with, by number."""
    rows = await connection.fetch(database.sql["list_peppers"])
    return {row["id"]: row["fingerprint"] for row in rows}


def fit(ours: dict[int, bytes], stored: dict[int, bytes]) -> bool:
    """Tell whether each pepper that keys are stored with is one of ours."""
    return stored.items() <= ours.items()
