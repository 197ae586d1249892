"""Accounts and keys in Postgres; every call ends in time, whatever state Postgres is in."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Self, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from auth_service import accounts, queries
from auth_service.accounts import Account, AccountState, Change, Identity, Key, KeyState
from auth_service.errors import AlreadyExistsError, NotFoundError, StoreUnavailableError
from auth_service.keys import Peppers

VERIFY_DEADLINE_S = 0.4
DEADLINE_S = 5.0
POOL_SIZE = 8

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

T = TypeVar("T")


class Store:
    """The accounts and keys of one database.

    Every method raises `StoreUnavailableError` when Postgres cannot be asked in time. A write that
    ends so may have happened: ask again, all of them can be repeated but `create_account`.

    Args:
        pool: connections to a database with our schema.
        peppers: what keys are stored with.
        random: a source fit for secrets, for ids and salts.
        verify_deadline_s: seconds that `verify` takes at most.
        deadline_s: seconds that any other method takes at most.
    """

    def __init__(
        self,
        pool: asyncpg.Pool,
        peppers: Peppers,
        random: Random,
        *,
        verify_deadline_s: float = VERIFY_DEADLINE_S,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._pool = pool
        self._peppers = peppers
        self._random = random
        self._verify_deadline_s = verify_deadline_s
        self._deadline_s = deadline_s
        self._queries = queries.load()
        self._running: set[asyncio.Task[object]] = set()

    @classmethod
    async def open(
        cls,
        dsn: str,
        peppers: Peppers,
        random: Random,
        *,
        pool_size: int = POOL_SIZE,
        verify_deadline_s: float = VERIFY_DEADLINE_S,
    ) -> Self:
        """A store over a pool of its own; connects when first asked, so Postgres may be down."""
        pool = await asyncpg.create_pool(
            dsn,
            min_size=0,
            max_size=pool_size,
            timeout=DEADLINE_S,
            command_timeout=DEADLINE_S,
            reset=_keep_session,
            server_settings={"application_name": "fastrun-auth"},
        )
        return cls(pool, peppers, random, verify_deadline_s=verify_deadline_s)

    async def close(self) -> None:
        """Give all connections back, by force if Postgres does not answer."""
        closing = asyncio.ensure_future(self._pool.close())
        await asyncio.wait({closing}, timeout=self._deadline_s)
        if not closing.done():
            self._pool.terminate()
            closing.cancel()

    async def verify(self, key_sha256: bytes) -> Identity | None:
        """Whom a key speaks for; None: there is no such key."""
        digests = self._peppers.digests(key_sha256)

        async def work(connection: PoolConnectionProxy) -> Identity | None:
            sql = self._queries["find_identity"]
            row = await connection.fetchrow(sql, digests, timeout=self._verify_deadline_s)
            return None if row is None else _identity(row)

        return await self._within(self._verify_deadline_s, work)

    async def create_account(self, name: str) -> Account:
        """Make a pending account.

        Raises:
            InvalidFieldError: no account can have this name.
            AlreadyExistsError: the name is taken.
        """
        name = accounts.account_name(name)
        account_id = accounts.new_account_id(self._random)
        cache_salt = accounts.new_cache_salt(self._random)

        async def work(connection: PoolConnectionProxy) -> Account:
            sql = self._queries["create_account"]
            row = await connection.fetchrow(sql, account_id, name, cache_salt)
            if row is None:
                raise AlreadyExistsError(f"the account name {name!r} is taken")
            return _account(row)

        return await self._within(self._deadline_s, work)

    async def approve(self, account: str) -> Account:
        """Let an account, given by id or name, call; idempotent.

        Raises:
            NotFoundError: there is no such account.
        """
        return await self._change(account, Change.APPROVE)

    async def suspend(self, account: str) -> Account:
        """Stop an account, given by id or name, from calling; idempotent.

        Raises:
            NotFoundError: there is no such account.
            StateError: it is pending, so it cannot call anyway.
        """
        return await self._change(account, Change.SUSPEND)

    async def list_accounts(self, state: AccountState | None = None) -> list[Account]:
        """The accounts in one state, or all; newest first."""

        async def work(connection: PoolConnectionProxy) -> list[Account]:
            rows = await connection.fetch(self._queries["list_accounts"], state)
            return [_account(row) for row in rows]

        return await self._within(self._deadline_s, work)

    async def issue_key(
        self, account: str, *, name: str, key_sha256: bytes, prefix: str, expires_at: float | None
    ) -> Key:
        """Register a key for an account, given by id or name; idempotent by `key_sha256`.

        Args:
            account: id or name.
            name: how the account's people call the key; may be empty.
            key_sha256: SHA-256 of the whole key, 32 bytes.
            prefix: the key's first 8 characters.
            expires_at: seconds since 1970; None: never.

        Raises:
            InvalidFieldError: no key can have these values.
            NotFoundError: there is no such account.
            AlreadyExistsError: the key is registered for another account.
        """
        pepper = self._peppers.current
        digests = self._peppers.digests(key_sha256)
        values = (
            accounts.key_name(name),
            accounts.key_prefix(prefix),
            pepper.digest(key_sha256),
            pepper.id,
            accounts.key_expiry(expires_at),
        )
        key_id = accounts.new_key_id(self._random)
        find, insert = self._queries["find_key"], self._queries["issue_key"]

        async def work(connection: PoolConnectionProxy) -> Key:
            owner = await self._find(connection, "find_account", account)
            row = (
                await connection.fetchrow(find, digests)
                or await connection.fetchrow(insert, key_id, owner.account_id, *values)
                or await connection.fetchrow(find, digests)  # registered between the two
            )
            assert row is not None
            key = _key(row)
            if key.account_id != owner.account_id:
                raise AlreadyExistsError(
                    "this key is registered for another account: make a new one"
                )
            return key

        return await self._within(self._deadline_s, work)

    async def revoke_key(self, key_id: str) -> Key:
        """End a key for good; idempotent.

        Raises:
            NotFoundError: there is no such key.
        """

        async def work(connection: PoolConnectionProxy) -> Key:
            row = await connection.fetchrow(self._queries["revoke_key"], _reference(key_id))
            if row is None:
                raise NotFoundError(f"key {key_id!r} does not exist")
            return _key(row)

        return await self._within(self._deadline_s, work)

    async def list_keys(self, account: str = "") -> list[Key]:
        """The keys of an account, given by id or name, or of all (empty); newest first.

        Raises:
            NotFoundError: there is no such account.
        """

        async def work(connection: PoolConnectionProxy) -> list[Key]:
            account_id = None
            if account:
                account_id = (await self._find(connection, "find_account", account)).account_id
            rows = await connection.fetch(self._queries["list_keys"], account_id)
            return [_key(row) for row in rows]

        return await self._within(self._deadline_s, work)

    async def _change(self, account: str, change: Change) -> Account:
        async def work(connection: PoolConnectionProxy) -> Account:
            async with connection.transaction():
                found = await self._find(connection, "lock_account", account)
                state = accounts.changed(found.state, change)
                if state != found.state:
                    sql = self._queries["set_account_state"]
                    await connection.execute(sql, found.account_id, state)
                return replace(found, state=state)

        return await self._within(self._deadline_s, work)

    async def _find(self, connection: PoolConnectionProxy, query: str, account: str) -> Account:
        row = await connection.fetchrow(self._queries[query], _reference(account))
        if row is None:
            raise NotFoundError(f"account {account!r} does not exist")
        return _account(row)

    async def _within(
        self, deadline_s: float, work: Callable[[PoolConnectionProxy], Awaitable[T]]
    ) -> T:
        """Do work with a connection, and walk away from it at the deadline.

        Cancelling it would wait: the driver first asks the server to cancel, which a frozen one
        never does. What is left behind ends by itself, by the timeouts of its acquire and queries.
        """

        async def hold() -> T:
            async with self._pool.acquire(timeout=deadline_s) as connection:
                return await work(connection)

        task = asyncio.ensure_future(hold())
        self._running.add(task)  # the loop alone would not keep it
        task.add_done_callback(self._forget)
        await asyncio.wait({task}, timeout=deadline_s)
        if not task.done():
            raise StoreUnavailableError(f"Postgres did not answer within {deadline_s} s")
        try:
            return task.result()
        except OUTAGES as error:
            raise StoreUnavailableError(f"Postgres cannot be asked: {error}") from error

    def _forget(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # seen: what nobody waits for any more is not reported


async def _keep_session(_: asyncpg.Connection) -> None:
    """What a connection needs when it comes back: nothing, as no query changes its session."""


def _reference(text: str) -> str:
    """An id or a name to look for, without what Postgres cannot take in a text."""
    return text.replace("\0", "�")


def _account(row: asyncpg.Record) -> Account:
    return Account(row["id"], row["name"], AccountState(row["state"]), row["created_at"])


def _key(row: asyncpg.Record) -> Key:
    return Key(
        key_id=row["id"],
        account_id=row["account_id"],
        name=row["name"],
        prefix=row["prefix"],
        state=_key_state(row),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
    )


def _identity(row: asyncpg.Record) -> Identity:
    return Identity(
        account_id=row["account_id"],
        key_id=row["key_id"],
        account_state=AccountState(row["account_state"]),
        key_state=_key_state(row),
        expires_at=row["expires_at"],
        cache_salt=row["cache_salt"],
    )


def _key_state(row: asyncpg.Record) -> KeyState:
    return KeyState.REVOKED if row["revoked"] else KeyState.ACTIVE
