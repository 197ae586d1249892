"""Which pepper the stored keys were made with, so that a wrong one is told before it is used."""

from auth_service.database import Connection, Database
from auth_service.errors import PepperError
from auth_service.keys import Pepper


async def check(database: Database, pepper: Pepper) -> None:
    """Make sure that the stored keys, if there are any, were made with a pepper.

    Raises:
        PepperError: they were made with another one.
        StoreUnavailableError: Postgres cannot be asked.
    """
    fingerprint = pepper.fingerprint()

    async def recorded(connection: Connection) -> bytes | None:
        found: bytes | None = await connection.fetchval(database.sql["find_pepper"], pepper.id)
        return found

    async def work(connection: Connection) -> bytes | None:
        if (found := await recorded(connection)) is not None:
            return found
        sql = database.sql["record_pepper_of_old_keys"]
        await connection.execute(sql, pepper.id, fingerprint)
        return await recorded(connection)

    if await database.within(work) not in (None, fingerprint):
        raise PepperError
