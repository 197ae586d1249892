"""Who changed what: one record for each change, written in the same transaction."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import asyncpg
import msgspec

from auth_service.database import Connection, Database
from auth_service.errors import InvalidFieldError

LIST_LENGTH = 100
MOST_LISTED = 10_000


class Action(StrEnum):
    """What was done."""

    ACCOUNT_CREATED = "account_created"
    ACCOUNT_APPROVED = "account_approved"
    ACCOUNT_SUSPENDED = "account_suspended"
    ACCOUNT_CLOSED = "account_closed"
    ACCOUNT_LIMITED = "account_limited"
    KEY_ISSUED = "key_issued"
    KEY_ROTATED = "key_rotated"
    KEY_REVOKED = "key_revoked"
    KEY_LIMITED = "key_limited"
    PRICE_SET = "price_set"
    WORKER_TOKEN_CREATED = "worker_token_created"  # noqa: S105 - says what was done
    WORKER_JOINED = "worker_joined"


@dataclass(frozen=True, slots=True)
class Record:
    """One change.

    Args:
        number: counts up, perhaps with gaps.
        at: seconds since 1970.
        actor: who made it, such as `operator/alice`.
        action: an Action, or what a newer code does.
        account_id: which account it is about; empty: none.
        key_id: which key it is about; empty: none.
        change_json: `{"field": {"from": ..., "to": ...}}`.
    """

    number: int
    at: float
    actor: str
    action: str
    account_id: str
    key_id: str
    change_json: str


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What was and what became of each field whose value is another now."""
    return {
        field: {"from": before.get(field), "to": value}
        for field, value in after.items()
        if before.get(field) != value
    }


class Audit:
    """The records of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(
        self,
        connection: Connection,
        actor: str,
        action: str,
        change: Mapping[str, Any],
        *,
        account_id: str | None = None,
        key_id: str | None = None,
    ) -> None:
        """Add a record within the transaction of the change itself.

        Args:
            connection: in the transaction.
            actor: who makes the change.
            action: what is done.
            change: see `difference`.
            account_id: which account it is about.
            key_id: which key it is about.
        """
        text = msgspec.json.encode(change).decode()
        sql = self._database.sql["add_audit_record"]
        await connection.execute(sql, actor, action, account_id, key_id, text)

    async def list(self, account_id: str | None = None, limit: int = 0) -> list[Record]:
        """The records about an account and its keys, or (None) all; newest first.

        Args:
            account_id: whose.
            limit: at most so many; 0: 100.

        Raises:
            InvalidFieldError: the limit is over 10,000.
            StoreUnavailableError: Postgres cannot be asked in time.
        """
        if limit > MOST_LISTED:
            raise InvalidFieldError(f"limit must be at most {MOST_LISTED}")
        most = limit or LIST_LENGTH

        async def work(connection: Connection) -> list[asyncpg.Record]:
            if account_id is None:
                return await connection.fetch(self._database.sql["list_audit"], most)
            sql = self._database.sql["list_audit_of_account"]
            return await connection.fetch(sql, account_id, most)

        return [_record(row) for row in await self._database.within(work)]


def _record(row: asyncpg.Record) -> Record:
    return Record(
        number=row["number"],
        at=row["at"],
        actor=row["actor"],
        action=row["action"],
        account_id=row["account_id"] or "",
        key_id=row["key_id"] or "",
        change_json=row["change"],
    )
