"""The auth service's stores over one database, as its __main__ makes them, for tests."""

from dataclasses import dataclass
from random import Random

import asyncpg

from auth_service.account_store import AccountStore
from auth_service.accounts import Identity
from auth_service.audit import Audit
from auth_service.database import Database
from auth_service.key_lookup import KeyLookup
from auth_service.key_store import KeyStore, NewKey
from auth_service.keys import Pepper, Peppers
from auth_service.prices import Prices
from auth_service.usage_store import UsageStore
from fastrun.service import api_key

PEPPERS = Peppers(Pepper(1, b"p" * 32))
ACTOR = "operator/ada"


@dataclass(frozen=True)
class Stores:
    """One of each, and the database below them."""

    dsn: str
    database: Database
    accounts: AccountStore
    keys: KeyStore
    lookup: KeyLookup
    audit: Audit
    usage: UsageStore
    prices: Prices

    async def close(self) -> None:
        """Give all connections back."""
        await self.database.close()

    async def verify(self, key: str) -> Identity | None:
        """Whom a key speaks for."""
        return await self.lookup.verify(api_key.key_sha256(key))

    async def ask(self, sql: str, *args: object) -> list[asyncpg.Record]:
        """Ask what no store tells, on a connection of its own."""
        connection = await asyncpg.connect(self.dsn)
        try:
            return list(await connection.fetch(sql, *args))
        finally:
            await connection.close()


async def open_stores(
    dsn: str, *, random: Random, peppers: Peppers = PEPPERS, deadline_s: float = 0.4
) -> Stores:
    """Make all stores of a database; close them in the end."""
    database = await Database.open(dsn)
    audit = Audit(database)
    return Stores(
        dsn,
        database,
        AccountStore(database, audit, random, lambda: ACTOR),
        KeyStore(database, audit, peppers, random, lambda: ACTOR),
        KeyLookup(database, peppers, deadline_s=deadline_s),
        audit,
        UsageStore(database),
        Prices(database, audit, lambda: ACTOR),
    )


def new_key(key: str, **fields: object) -> NewKey:
    """What a client that has made a key tells of it."""
    told = {
        "name": "laptop",
        "key_sha256": api_key.key_sha256(key),
        "prefix": api_key.display_prefix(key),
    }
    return NewKey(**(told | fields))  # type: ignore[arg-type] # tests pass wrong ones on purpose


async def usage_of_all(store, days, **whose):
    """All pages of what all accounts used."""
    sums, after = await store.of_all(days, **whose)
    while after is not None:
        page, after = await store.of_all(days, after=after, **whose)
        sums += page
    return sums
