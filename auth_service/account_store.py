"""Accounts in Postgres; each change with its audit record in the same transaction."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import asyncpg

from auth_service import accounts, limits
from auth_service.accounts import Account, AccountState, Change
from auth_service.audit import Action, Audit, difference
from auth_service.database import Connection, Database, reference
from auth_service.errors import AlreadyExistsError, NotFoundError, StateError
from auth_service.limits import Limits

_ACTIONS = {
    Change.APPROVE: Action.ACCOUNT_APPROVED,
    Change.SUSPEND: Action.ACCOUNT_SUSPENDED,
    Change.CLOSE: Action.ACCOUNT_CLOSED,
}


class AccountStore:
    """The accounts of one database.

    Every method raises `StoreUnavailableError` when Postgres cannot be asked in time. A write that
    ends so may have happened: ask again, all of them can be repeated but `create`.

    Args:
        database: where they are.
        audit: where each change is recorded.
        random: a source fit for secrets, for ids and salts.
        actor: says who makes the change that is being made.
    """

    def __init__(
        self, database: Database, audit: Audit, random: Random, actor: Callable[[], str]
    ) -> None:
        self._database = database
        self._audit = audit
        self._random = random
        self._actor = actor

    async def create(self, name: str) -> Account:
        """Make a pending account.

        Raises:
            InvalidFieldError: no account can have this name.
            AlreadyExistsError: the name is taken.
        """
        name = accounts.account_name(name)
        account_id = accounts.new_account_id(self._random)
        cache_salt = accounts.new_cache_salt(self._random)

        async def work(connection: Connection) -> Account:
            sql = self._database.sql["create_account"]
            row = await connection.fetchrow(sql, account_id, name, cache_salt)
            if row is None:
                raise AlreadyExistsError(f"the account name {name!r} is taken: choose another one")
            change = difference({}, {"name": name, "state": row["state"]})
            await self._record(connection, Action.ACCOUNT_CREATED, account_id, change)
            return _account(row)

        return await self._database.in_transaction(work)

    async def approve(self, account: str) -> Account:
        """Let an account, given by id or name, call; idempotent.

        Raises:
            NotFoundError: there is no such account.
            StateError: it is closed.
        """
        return await self._change(account, Change.APPROVE)

    async def suspend(self, account: str) -> Account:
        """Stop an account, given by id or name, from calling; idempotent.

        Raises:
            NotFoundError: there is no such account.
            StateError: it is pending or closed, so it cannot call anyway.
        """
        return await self._change(account, Change.SUSPEND)

    async def close(self, account: str) -> Account:
        """End an account, given by id or name, and all its keys, for good; idempotent.

        Raises:
            NotFoundError: there is no such account.
        """
        return await self._change(account, Change.CLOSE)

    async def set_limits(self, account: str, new: Limits) -> Limits:
        """Replace the limits of an account, given by id or name; idempotent.

        Raises:
            InvalidFieldError: these are no limits.
            NotFoundError: there is no such account.
            StateError: it is closed.
        """
        limits.checked(new)

        async def work(connection: Connection) -> Limits:
            found = await lock_account(self._database, connection, account)
            if found.state == AccountState.CLOSED:
                raise StateError("cannot limit an account that is closed")
            change = difference(limits.as_dict(found.limits), limits.as_dict(new))
            if change:
                sql = self._database.sql["set_account_limits"]
                await connection.execute(sql, found.account_id, limits.to_json(new))
                await self._record(connection, Action.ACCOUNT_LIMITED, found.account_id, change)
            return new

        return await self._database.in_transaction(work)

    async def find(self, account: str) -> Account:
        """The account of that id or name.

        Raises:
            NotFoundError: there is no such account.
        """

        async def work(connection: Connection) -> Account:
            sql = self._database.sql["find_account"]
            return _found(await connection.fetchrow(sql, reference(account)), account)

        return await self._database.within(work)

    async def list(self, state: AccountState | None = None) -> list[Account]:
        """The accounts in one state, or all; newest first."""

        async def work(connection: Connection) -> list[Account]:
            rows = await connection.fetch(self._database.sql["list_accounts"], state)
            return [_account(row) for row in rows]

        return await self._database.within(work)

    async def _change(self, account: str, change: Change) -> Account:
        async def work(connection: Connection) -> Account:
            found = await lock_account(self._database, connection, account)
            state = accounts.changed(found.state, change)
            if state == found.state:
                return found
            sql = self._database.sql["set_account_state"]
            await connection.execute(sql, found.account_id, state)
            difference_ = difference({"state": found.state}, {"state": state})
            if change == Change.CLOSE:
                difference_ |= await self._revoke_all(connection, found.account_id)
            await self._record(connection, _ACTIONS[change], found.account_id, difference_)
            return replace(found, state=state)

        return await self._database.in_transaction(work)

    async def _revoke_all(self, connection: Connection, account_id: str) -> dict[str, Any]:
        sql = self._database.sql["revoke_keys_of_account"]
        rows = await connection.fetch(sql, account_id)
        return difference({}, {"revoked_keys": sorted(row["id"] for row in rows)})

    async def _record(
        self, connection: Connection, action: Action, account_id: str, change: dict[str, Any]
    ) -> None:
        await self._audit.add(connection, self._actor(), action, change, account_id=account_id)


async def lock_account(database: Database, connection: Connection, account: str) -> Account:
    """The account of that id or name, which stays as it is until the transaction ends.

    Raises:
        NotFoundError: there is no such account.
    """
    row = await connection.fetchrow(database.sql["lock_account"], reference(account))
    return _found(row, account)


def _found(row: asyncpg.Record | None, account: str) -> Account:
    if row is None:
        raise NotFoundError(f"account {account!r} does not exist: fastrun account list shows all")
    return _account(row)


def _account(row: asyncpg.Record) -> Account:
    return Account(
        account_id=row["id"],
        name=row["name"],
        state=AccountState(row["state"]),
        created_at=row["created_at"],
        limits=limits.of_json(row["limits"]),
    )
