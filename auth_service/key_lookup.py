"""Whom a key speaks for: lookups that come together are asked together."""

import asyncio
from dataclasses import dataclass

import asyncpg

from auth_service import limits
from auth_service.accounts import AccountState, Identity, KeyState
from auth_service.database import Connection, Database
from auth_service.errors import StoreUnavailableError
from auth_service.keys import Peppers

DEADLINE_S = 0.3
BATCH = 256


@dataclass(slots=True)
class _Waiting:
    """A lookup that has not been asked yet, and until when somebody waits for it."""

    digests: list[bytes]
    answer: "asyncio.Future[Identity | None]"
    until: float


class KeyLookup:
    """Looks keys up with half of the pool at most, so that a flood of unknown keys delays nobody.

    A lookup is asked at once if a query may be sent, else together with all that wait by then.

    Args:
        database: where keys are.
        peppers: what they are stored with.
        deadline_s: seconds that a lookup takes at most, whatever state Postgres is in.
    """

    def __init__(
        self, database: Database, peppers: Peppers, *, deadline_s: float = DEADLINE_S
    ) -> None:
        self._database = database
        self._peppers = peppers
        self._deadline_s = deadline_s
        self._most_queries = max(1, database.pool_size // 2)
        self._waiting: dict[bytes, _Waiting] = {}
        self._querying = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def verify(self, key_sha256: bytes) -> Identity | None:
        """Whom a key speaks for; None: there is no such key.

        Raises:
            InvalidFieldError: this is no SHA-256.
            StoreUnavailableError: Postgres cannot be asked in time.
        """
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(key_sha256)
        if waiting is None:
            digests = self._peppers.digests(key_sha256)
            waiting = _Waiting(digests, loop.create_future(), 0)
            waiting.answer.add_done_callback(_see)
            self._waiting[key_sha256] = waiting
        waiting.until = loop.time() + self._deadline_s
        if self._querying < self._most_queries:
            self._querying += 1
            task = asyncio.create_task(self._ask_all(), name="key-lookup")
            self._tasks.add(task)  # the loop alone would not keep it
            task.add_done_callback(self._tasks.discard)
        await asyncio.wait({waiting.answer}, timeout=self._deadline_s)
        if not waiting.answer.done():
            raise StoreUnavailableError(f"Postgres did not answer within {self._deadline_s} s")
        return waiting.answer.result()

    async def _ask_all(self) -> None:
        """Send one query after the other until nothing waits."""
        try:
            while batch := self._take():
                await self._answer(batch)
        finally:
            # In the turn of the loop that found nothing: who comes from now on starts another.
            self._querying -= 1

    async def _answer(self, batch: list[_Waiting]) -> None:
        try:
            found = await self._ask([digest for each in batch for digest in each.digests])
        except Exception as error:  # noqa: BLE001 - told to everybody who waits for it
            for each in batch:
                each.answer.set_exception(error)
        else:
            for each in batch:
                known = [found[digest] for digest in each.digests if digest in found]
                each.answer.set_result(known[0] if known else None)

    def _take(self) -> list[_Waiting]:
        """Take the next that somebody still waits for."""
        now = asyncio.get_running_loop().time()
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < BATCH:
            each = self._waiting.pop(next(iter(self._waiting)))
            if each.until > now:
                batch.append(each)
        return batch

    async def _ask(self, digests: list[bytes]) -> dict[bytes, Identity]:
        async def work(connection: Connection) -> list[asyncpg.Record]:
            sql = self._database.sql["find_identities"]
            return await connection.fetch(sql, digests, timeout=self._deadline_s)

        rows = await self._database.within(work, deadline_s=self._deadline_s)
        return {row["digest"]: _identity(row) for row in rows}


def _see(answer: "asyncio.Future[Identity | None]") -> None:
    if not answer.cancelled():
        answer.exception()  # seen: what nobody waits for any more is not reported


def _identity(row: asyncpg.Record) -> Identity:
    return Identity(
        account_id=row["account_id"],
        key_id=row["key_id"],
        account_state=AccountState(row["account_state"]),
        key_state=KeyState.REVOKED if row["revoked"] else KeyState.ACTIVE,
        expires_at=row["expires_at"],
        cache_salt=row["cache_salt"],
        sequence=row["sequence"],
        models=tuple(row["models"]),
        account_limits=limits.of_json(row["account_limits"]),
        key_limits=limits.of_json(row["key_limits"]),
        account_month_tokens=row["account_month_tokens"],
        key_month_tokens=row["key_month_tokens"],
    )
