"""Postgres as the auth service uses it: one bounded pool, and a deadline for every call."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from auth_service import queries
from auth_service.errors import StoreUnavailableError

DEADLINE_S = 5.0
POOL_SIZE = 8
SESSION = {
    "application_name": "fastrun-auth",
    # Planning anew takes as long as a lookup; the tests of query plans try these as well.
    "plan_cache_mode": "force_generic_plan",
}

# What the driver raises when Postgres is away, stops, starts, is full or does not let us in.
OUTAGES: tuple[type[Exception], ...] = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # an ended session, noticed between two queries
)

Connection = PoolConnectionProxy
T = TypeVar("T")


class Database:
    """A pool of connections to a database with our schema, and our queries by name.

    The driver prepares each statement once for each connection.

    Args:
        pool: the connections.
        deadline_s: seconds that a call takes at most, unless it names its own.
    """

    def __init__(self, pool: asyncpg.Pool, *, deadline_s: float = DEADLINE_S) -> None:
        self.sql = queries.load()
        self._pool = pool
        self._deadline_s = deadline_s
        self._running: set[asyncio.Task[object]] = set()

    @classmethod
    async def open(cls, dsn: str, *, pool_size: int = POOL_SIZE) -> Self:
        """A database with a pool of its own; connects when first asked, so Postgres may be down."""
        pool = await asyncpg.create_pool(
            dsn,
            min_size=0,
            max_size=pool_size,
            timeout=DEADLINE_S,
            command_timeout=DEADLINE_S,
            reset=_keep_session,
            server_settings=SESSION,
        )
        return cls(pool)

    @property
    def pool_size(self) -> int:
        """Most connections at once."""
        return self._pool.get_max_size()

    async def close(self) -> None:
        """Give all connections back, by force if Postgres does not answer."""
        closing = asyncio.ensure_future(self._pool.close())
        await asyncio.wait({closing}, timeout=self._deadline_s)
        if not closing.done():
            self._pool.terminate()
            closing.cancel()

    async def within(
        self, work: Callable[[Connection], Awaitable[T]], *, deadline_s: float | None = None
    ) -> T:
        """Do work with a connection, and walk away from it at the deadline.

        Cancelling it would wait: the driver first asks the server to cancel, which a frozen one
        never does. What is left behind ends by itself, by the timeouts of its acquire and queries.

        Raises:
            StoreUnavailableError: Postgres cannot be asked in time. A write may have happened.
        """
        seconds = self._deadline_s if deadline_s is None else deadline_s

        async def hold() -> T:
            async with self._pool.acquire(timeout=seconds) as connection:
                return await work(connection)

        return await self._ended(asyncio.ensure_future(hold()), seconds)

    async def in_transaction(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do work that happens as a whole or not at all.

        Raises:
            StoreUnavailableError: Postgres cannot be asked in time. It may have happened.
        """

        async def whole(connection: Connection) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self.within(whole)

    async def _ended(self, task: "asyncio.Task[T]", seconds: float) -> T:
        self._running.add(task)  # the loop alone would not keep it
        task.add_done_callback(self._forget)
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise StoreUnavailableError(f"Postgres did not answer within {seconds} s")
        try:
            return task.result()
        except OUTAGES as error:
            raise StoreUnavailableError(
                f"Postgres cannot be asked ({error}): start it, or correct the auth service's "
                "DATABASE_URL"
            ) from error

    def _forget(self, task: "asyncio.Task[object]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # seen: what nobody waits for any more is not reported


def reference(text: str) -> str:
    """An id or a name to look for, without what Postgres cannot take in a text."""
    return text.replace("\0", "\ufffd")


async def _keep_session(_: asyncpg.Connection) -> None:
    """What a connection needs when it comes back: nothing, as no query changes its session."""
