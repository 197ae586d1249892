"""Which peppers the stored keys were made with, so that a wrong one is told before it is used."""

from collections.abc import Iterable, Mapping

from auth_service.database import Connection, Database
from auth_service.errors import PepperError, RetiredPepperError
from auth_service.keys import Peppers


async def check(database: Database, peppers: Peppers) -> None:
    """Make sure that all stored keys were made with peppers that we have.

    Raises:
        PepperError: some were made with another one.
        RetiredPepperError: some that have not ended were made with one that is called retired.
        StoreUnavailableError: Postgres cannot be asked.
    """
    ours = peppers.fingerprints()

    async def work(connection: Connection) -> tuple[dict[int, bytes], int]:
        found = await recorded(database, connection)
        for number in ours.keys() - found.keys():
            sql = database.sql["record_pepper_of_old_keys"]
            await connection.execute(sql, number, ours[number])
        needed = await keys_of(database, connection, peppers.retired)
        return await recorded(database, connection), needed

    stored, needed = await database.within(work)
    if not fit(peppers, stored):
        raise PepperError
    if needed:
        raise RetiredPepperError(needed)


async def recorded(database: Database, connection: Connection) -> dict[int, bytes]:
    """Return the fingerprints of the peppers that keys are stored with, by number."""
    rows = await connection.fetch(database.sql["list_peppers"])
    return {row["id"]: row["fingerprint"] for row in rows}


async def keys_of(database: Database, connection: Connection, numbers: Iterable[int]) -> int:
    """Count the keys that have not ended and are stored with peppers of these numbers."""
    asked = sorted(numbers)
    if not asked:
        return 0
    return int(await connection.fetchval(database.sql["count_keys_of_peppers"], asked))


def fit(peppers: Peppers, stored: Mapping[int, bytes]) -> bool:
    """Tell whether each pepper that keys are stored with is one of ours, or was."""
    known = {number: each for number, each in stored.items() if number not in peppers.retired}
    return known.items() <= peppers.fingerprints().items()
