"""Usage in Postgres: records that count once, and the sums of each day beside them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import fields
from datetime import date
from operator import attrgetter
from typing import TypeVar

import asyncpg

from auth_service import usage
from auth_service.database import DEADLINE_S, Connection, Database, reference
from auth_service.errors import StoreUnavailableError
from auth_service.usage import MOST_SUMS, PAGE_SUMS, Days, Place, UsageRecord, UsageSum

RECOMPUTE_S = 60.0  # for one day

# In the order of add_usage_records; `astuple` would copy all values, in 200 times the time.
_VALUES = attrgetter(*(field.name for field in fields(UsageRecord)))

T = TypeVar("T")


class UsageStore:
    """What the requests of one database's accounts have used.

    Every method raises `StoreUnavailableError` when Postgres cannot be asked in time. All can be
    repeated.

    Args:
        database: with our schema.
        deadline_s: seconds that a call takes at most; recomputing: see RECOMPUTE_S.
    """

    def __init__(self, database: Database, *, deadline_s: float = DEADLINE_S) -> None:
        self._database = database
        self._deadline_s = deadline_s
        # Key lookups always find connections: what is asked here can wait, they cannot.
        self._share = asyncio.Semaphore(max(1, database.pool_size // 2))

    async def record(self, records: list[UsageRecord]) -> int:
        """Commit records with their sums; those whose request is known change nothing.

        Returns:
            How many were new.

        Raises:
            InvalidFieldError: there are too many, or one cannot be kept; none was recorded.
        """
        records = usage.checked(records)
        if not records:
            return 0
        columns = [list(column) for column in zip(*map(_VALUES, records), strict=True)]
        sql = self._database.sql

        async def work(connection: Connection) -> int:
            async with connection.transaction():
                rows = await connection.fetch(sql["add_usage_records"], *columns)
                new = {row["request_id"] for row in rows}
                if new:
                    await connection.execute(sql["add_to_usage_days"], list(new))
                    used = [record for record in records if record.request_id in new]
                    await connection.execute(
                        sql["note_keys_used"],
                        [record.key_id for record in used],
                        [record.started_at for record in used],
                    )
                return len(new)

        return await self._shared(work, self._deadline_s)

    async def of_account(
        self, account_id: str, days: Days, *, key_id: str = "", model: str = ""
    ) -> list[UsageSum]:
        """What an account used, by day and model.

        Args:
            account_id: whose; one that does not exist has used nothing.
            days: when.
            key_id: of one of its keys alone; empty: of all.
            model: of one model alone; empty: of all.

        Raises:
            InvalidFieldError: there are more sums than an answer can hold.
        """
        sql = self._database.sql["usage_of_account"]
        whose = (reference(account_id), reference(key_id))
        asked = (days.first, days.last, reference(model) or None)
        return usage.limited(await self._fetch(sql, *whose, *asked, MOST_SUMS + 1))

    async def of_all(
        self, days: Days, *, model: str = "", after: Place | None = None
    ) -> tuple[list[UsageSum], Place | None]:
        """A page of what all accounts used, by day, account and model.

        Args:
            days: when.
            model: of one model alone; empty: of all.
            after: where the page before ended; None: this is the first.

        Returns:
            The sums, and where the page ended; None: there are no more.
        """
        sql = self._database.sql["usage_of_all"]
        after = after or Place(days.first, "", "")
        place = (after.day, reference(after.account_id), reference(after.model))
        asked = (days.first, days.last, reference(model) or None)
        sums = await self._fetch(sql, *asked, *place, PAGE_SUMS)
        return sums, Place.of(sums[-1]) if len(sums) == PAGE_SUMS else None

    async def recompute(self, days: Days) -> int:
        """Compute the sums of days anew from the records; each day as a whole, or not at all.

        Meanwhile nothing can be recorded; between two days it can.

        Returns:
            How many sums are different now.
        """
        return sum([await self._recompute(day) for day in days.each()])

    async def _recompute(self, day: date) -> int:
        sql = self._database.sql

        async def work(connection: Connection) -> int:
            async with connection.transaction():
                await connection.execute(sql["lock_usage_days"], timeout=RECOMPUTE_S)
                changed = await connection.fetchval(
                    sql["recompute_usage_day"], day, timeout=RECOMPUTE_S
                )
                assert isinstance(changed, int)
                return changed

        return await self._shared(work, RECOMPUTE_S)

    async def _fetch(self, sql: str, *arguments: object) -> list[UsageSum]:
        async def work(connection: Connection) -> list[asyncpg.Record]:
            return await connection.fetch(sql, *arguments)

        rows = await self._shared(work, self._deadline_s)
        return [UsageSum(**row) for row in rows]

    async def _shared(self, work: Callable[[Connection], Awaitable[T]], deadline_s: float) -> T:
        """Do work with one of our share of the connections; the deadline counts the wait for it."""
        try:
            async with asyncio.timeout(deadline_s), self._share:
                return await self._database.within(work, deadline_s=deadline_s)
        except TimeoutError as error:
            raise StoreUnavailableError(f"Postgres did not answer within {deadline_s} s") from error
