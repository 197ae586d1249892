"""Keys in Postgres, as digests; each change with its audit record in the same transaction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import asyncpg

from auth_service import accounts, limits
from auth_service.account_store import lock_account
from auth_service.accounts import Account, AccountState, Key, KeyState
from auth_service.audit import Action, Audit, difference
from auth_service.database import Connection, Database, reference
from auth_service.errors import AlreadyExistsError, InvalidFieldError, NotFoundError, StateError
from auth_service.keys import Peppers
from auth_service.limits import NO_LIMITS, Limits

MOST_LISTED = 10_000
LONGEST_OVERLAP_S = 90 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that its maker has made, as it is told to us.

    Args:
        key_sha256: SHA-256 of the whole key, 32 bytes.
        prefix: the key's first 8 characters.
        name: how the account's people call the key; may be empty.
        expires_at: seconds since 1970; None: never.
        models: which it may use; empty: all.
        limits: how much it may use.
    """

    key_sha256: bytes
    prefix: str
    name: str = ""
    expires_at: float | None = None
    models: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS

    def checked(self) -> "NewKey":
        """The same, as it is stored.

        Raises:
            InvalidFieldError: no key can have these values.
        """
        return replace(
            self,
            name=accounts.key_name(self.name),
            prefix=accounts.key_prefix(self.prefix),
            expires_at=accounts.key_expiry(self.expires_at),
            models=accounts.key_models(self.models),
        )


class KeyStore:
    """The keys of one database; see AccountStore for outages, repeats and the arguments."""

    def __init__(
        self,
        database: Database,
        audit: Audit,
        peppers: Peppers,
        random: Random,
        actor: Callable[[], str],
    ) -> None:
        self._database = database
        self._audit = audit
        self._peppers = peppers
        self._random = random
        self._actor = actor

    async def issue(self, account: str, new: NewKey) -> Key:
        """Register a key for an account, given by id or name; idempotent by its SHA-256.

        Raises:
            InvalidFieldError: no key can have these values.
            NotFoundError: there is no such account.
            StateError: the account is closed.
            AlreadyExistsError: the key is registered for another account.
        """
        new = new.checked()
        digests = self._peppers.digests(new.key_sha256)

        async def work(connection: Connection) -> Key:
            owner = await lock_account(self._database, connection, account)
            row = await self._registered(connection, digests)
            if row is None:
                return await self._insert(connection, owner, new)
            return _of(owner, row)

        return await self._database.in_transaction(work)

    async def rotate(self, key_id: str, new: NewKey, overlap_s: float) -> Key:
        """Register a key in place of another, which goes on for a while; idempotent by its SHA-256.

        Args:
            key_id: the old one.
            new: the new one; name, expiry, models and limits are the old one's.
            overlap_s: how many seconds the old one still works; 0: it ends at once.

        Returns:
            The new one.

        Raises:
            InvalidFieldError: no key can have these values, or the overlap is over 90 days.
            NotFoundError: there is no such key.
            StateError: the old one has ended, or was rotated before.
            AlreadyExistsError: the new one is registered already, not in place of this one.
        """
        if not 0 <= overlap_s <= LONGEST_OVERLAP_S:
            raise InvalidFieldError(f"overlap_s must be from 0 to {LONGEST_OVERLAP_S}")
        new = new.checked()
        digests = self._peppers.digests(new.key_sha256)

        async def work(connection: Connection) -> Key:
            owner, row = await self._lock(connection, key_id)
            registered = await self._registered(connection, digests)
            if registered is not None:
                if registered["id"] == row["replaced_by"]:
                    return _key(registered)
                raise AlreadyExistsError("this key is registered already: make a new one")
            _check_rotation(row)
            old = _key(row)
            made = replace(
                new, name=old.name, expires_at=old.expires_at, models=old.models, limits=old.limits
            )
            key = await self._insert(connection, owner, made)
            await self._replace(connection, old, key.key_id, overlap_s)
            return key

        return await self._database.in_transaction(work)

    async def revoke(self, key_id: str) -> Key:
        """End a key for good; idempotent.

        Raises:
            NotFoundError: there is no such key.
        """

        async def work(connection: Connection) -> Key:
            _, row = await self._lock(connection, key_id)
            key = _key(row)
            if key.state == KeyState.REVOKED:
                return key
            revoked = replace(key, state=KeyState.REVOKED)
            await connection.execute(self._database.sql["revoke_key"], key.key_id)
            change = difference({"state": key.state}, {"state": revoked.state})
            await self._record(connection, Action.KEY_REVOKED, key, change)
            return revoked

        return await self._database.in_transaction(work)

    async def set_limits(self, key_id: str, new: Limits) -> Limits:
        """Replace the limits of a key; idempotent.

        Raises:
            InvalidFieldError: these are no limits.
            NotFoundError: there is no such key.
            StateError: it is revoked.
        """
        limits.checked(new)

        async def work(connection: Connection) -> Limits:
            _, row = await self._lock(connection, key_id)
            key = _key(row)
            if key.state == KeyState.REVOKED:
                raise StateError("cannot limit a key that is revoked")
            change = difference(limits.as_dict(key.limits), limits.as_dict(new))
            if change:
                sql = self._database.sql["set_key_limits"]
                await connection.execute(sql, key.key_id, limits.to_json(new))
                await self._record(connection, Action.KEY_LIMITED, key, change)
            return new

        return await self._database.in_transaction(work)

    async def list(self, account_id: str | None = None) -> list[Key]:
        """The keys of an account or (None) of all; newest first.

        Raises:
            InvalidFieldError: all are too many for one answer.
        """

        async def work(connection: Connection) -> list[asyncpg.Record]:
            if account_id is not None:
                sql = self._database.sql["list_keys_of_account"]
                return await connection.fetch(sql, account_id)
            return await connection.fetch(self._database.sql["list_keys"], MOST_LISTED + 1)

        rows = await self._database.within(work)
        if account_id is None and len(rows) > MOST_LISTED:
            raise InvalidFieldError(f"there are over {MOST_LISTED} keys: name an account")
        return [_key(row) for row in rows]

    async def _registered(
        self, connection: Connection, digests: Sequence[bytes]
    ) -> asyncpg.Record | None:
        return await connection.fetchrow(self._database.sql["find_key"], digests)

    async def _insert(self, connection: Connection, owner: Account, new: NewKey) -> Key:
        if owner.state == AccountState.CLOSED:
            raise StateError("cannot issue a key to an account that is closed")
        key_id = accounts.new_key_id(self._random)
        pepper = self._peppers.current
        digest = pepper.digest(new.key_sha256)
        await connection.execute(
            self._database.sql["issue_key"],
            *(key_id, owner.account_id, new.name, new.prefix, digest, pepper.id),
            *(new.expires_at, list(new.models), limits.to_json(new.limits)),
        )
        record = self._database.sql["record_pepper"]
        await connection.execute(record, pepper.id, pepper.fingerprint())
        row = await self._registered(connection, [digest])
        assert row is not None
        key = _of(owner, row)  # another account's, if that was quicker
        await self._record(connection, Action.KEY_ISSUED, key, _issued(new))
        return key

    async def _lock(self, connection: Connection, key_id: str) -> tuple[Account, asyncpg.Record]:
        """Lock a key, and before it its account, as everybody does who needs both.

        Raises:
            NotFoundError: there is no such key.
        """
        sql = self._database.sql
        key_id = reference(key_id)
        account_id = await connection.fetchval(sql["find_account_of_key"], key_id)
        if account_id is None:
            raise NotFoundError(f"key {key_id!r} does not exist: fastrun key list shows all")
        owner = await lock_account(self._database, connection, account_id)
        row = await connection.fetchrow(sql["lock_key"], key_id)
        assert row is not None  # keys are never deleted
        return owner, row

    async def _replace(
        self, connection: Connection, old: Key, new_id: str, overlap_s: float
    ) -> None:
        sql = self._database.sql["replace_key"]
        expires_at = await connection.fetchval(sql, old.key_id, new_id, overlap_s)
        after: dict[str, Any] = {"replaced_by": new_id, "expires_at": expires_at}
        if overlap_s == 0:
            after["state"] = KeyState.REVOKED
        before = {"expires_at": old.expires_at, "state": old.state}
        await self._record(connection, Action.KEY_ROTATED, old, difference(before, after))

    async def _record(
        self, connection: Connection, action: Action, key: Key, change: dict[str, Any]
    ) -> None:
        await self._audit.add(
            *(connection, self._actor(), action, change),
            account_id=key.account_id,
            key_id=key.key_id,
        )


def _check_rotation(row: asyncpg.Record) -> None:
    if row["revoked"]:
        raise StateError("cannot rotate a key that is revoked: issue a new one")
    if row["replaced_by"] is not None:
        raise StateError(f"this key was rotated before: revoke it, or rotate {row['replaced_by']}")
    if row["expired"]:
        raise StateError("cannot rotate a key that has expired: issue a new one")


def _of(owner: Account, row: asyncpg.Record) -> Key:
    if row["account_id"] != owner.account_id:
        raise AlreadyExistsError("this key is registered for another account: make a new one")
    return _key(row)


def _issued(new: NewKey) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": new.name,
        "prefix": new.prefix,
        "expires_at": new.expires_at,
        "models": new.models or None,
        **limits.as_dict(new.limits),
    }
    return difference({}, fields)


def _key(row: asyncpg.Record) -> Key:
    return Key(
        key_id=row["id"],
        account_id=row["account_id"],
        name=row["name"],
        prefix=row["prefix"],
        state=KeyState.REVOKED if row["revoked"] else KeyState.ACTIVE,
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        pepper=row["pepper_id"],
        models=tuple(row["models"]),
        limits=limits.of_json(row["limits"]),
        last_used_at=row["last_used_at"],
    )
