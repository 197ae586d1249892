"""Who joins as a worker, in Postgres; each change with its audit record in the same transaction."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg

from auth_service.audit import Action, Audit, difference
from auth_service.database import Connection, Database
from auth_service.enrolment import (
    TOKEN_S,
    Applicant,
    Holder,
    Token,
    check_join,
    check_renewal,
    worker_identity,
)
from auth_service.errors import InvalidFieldError
from auth_service.keys import SHA256_LENGTH
from fastrun.service.join_token import secret_sha256


@dataclass(frozen=True, slots=True)
class Certified:
    """A new certificate, in PEM, and when it ends."""

    cert: str
    expires_at: datetime


class EnrolmentStore:
    """The tokens and joined workers of one database.

    Args:
        database: where they are.
        audit: where tokens and joins are recorded.
        actor: says who makes the change that is being made.
        token_s: how long a token is good.
    """

    def __init__(
        self,
        database: Database,
        audit: Audit,
        actor: Callable[[], str],
        *,
        token_s: float = TOKEN_S,
    ) -> None:
        self._database = database
        self._audit = audit
        self._actor = actor
        self._token_s = token_s

    async def create_token(self, token_sha256: bytes, worker_id: str) -> float:
        """Register a token; idempotent.

        Args:
            token_sha256: of its secret part.
            worker_id: the only worker that it is for; empty: any name that is free.

        Returns:
            When it expires, in seconds since 1970.

        Raises:
            InvalidFieldError: this is no SHA-256, or cannot be a worker's name.
            StoreUnavailableError: Postgres cannot be asked in time. It may have happened.
        """
        if len(token_sha256) != SHA256_LENGTH:
            raise InvalidFieldError(f"token_sha256 must have {SHA256_LENGTH} bytes")
        if worker_id:
            worker_identity(worker_id)
        sql = self._database.sql

        async def work(connection: Connection) -> float:
            new = await connection.fetchval(
                sql["add_worker_token"], token_sha256, worker_id or None, self._token_s
            )
            expires_at = await connection.fetchval(sql["find_worker_token"], token_sha256)
            if new:
                await connection.execute(sql["forget_worker_tokens"])
                fields = {"worker_id": worker_id or None, "expires_at": expires_at}
                await self._record(connection, Action.WORKER_TOKEN_CREATED, fields)
            return float(expires_at)

        return await self._database.in_transaction(work)

    async def join(
        self, secret: str, applicant: Applicant, certify: Callable[[], Certified]
    ) -> Certified:
        """Let a machine join by a token, and give it a certificate.

        Raises:
            NotFoundError: nobody made this token.
            StateError: it has expired, was used, or is for another worker.
            AlreadyExistsError: the name is taken.
            StoreUnavailableError: Postgres cannot be asked in time. It may have happened, and can
                be asked for again with the same key.
        """
        sql = self._database.sql
        token_sha256, key, worker = secret_sha256(secret), applicant.key_sha256, applicant.worker

        async def work(connection: Connection) -> Certified:
            row = await connection.fetchrow(sql["lock_worker_token"], token_sha256)
            token = None if row is None else _token(row)
            if token is not None:  # a stranger's guesses leave no rows
                await connection.execute(sql["add_joined_worker"], worker.name, b"")
            holder = await self._holder(connection, worker.name)
            check_join(token, holder, worker.name, key)
            certified = certify()
            await connection.execute(sql["use_worker_token"], token_sha256, worker.name, key)
            await self._set(connection, worker.name, key, certified)
            replaced = holder is not None and holder.valid and holder.key_sha256 != key
            fields = {"worker_id": worker.name, "replaced": replaced or None}
            await self._record(connection, Action.WORKER_JOINED, fields, actor=str(worker))
            return certified

        return await self._database.in_transaction(work)

    async def renew(
        self, applicant: Applicant, certify: Callable[[], Certified] | None
    ) -> Certified | None:
        """Let a worker go on being one.

        Args:
            applicant: by the certificate that it shows.
            certify: makes it a new one; None: it needs none yet.

        Raises:
            NotFoundError: it has not joined, or not as the last of its name.
            StoreUnavailableError: Postgres cannot be asked in time. It may have happened.
        """
        key, worker = applicant.key_sha256, applicant.worker.name

        async def work(connection: Connection) -> Certified | None:
            check_renewal(await self._holder(connection, worker), worker, key)
            if certify is None:
                return None
            certified = certify()
            await self._set(connection, worker, key, certified)
            return certified

        return await self._database.in_transaction(work)

    async def _holder(self, connection: Connection, worker: str) -> Holder | None:
        row = await connection.fetchrow(self._database.sql["lock_joined_worker"], worker)
        return None if row is None else Holder(row["key_sha256"], row["valid"])

    async def _set(
        self, connection: Connection, worker: str, key: bytes, certified: Certified
    ) -> None:
        sql = self._database.sql["set_joined_worker"]
        await connection.execute(sql, worker, key, certified.expires_at.timestamp())

    async def _record(
        self,
        connection: Connection,
        action: Action,
        fields: dict[str, Any],
        *,
        actor: str | None = None,
    ) -> None:
        change = difference({}, fields)
        await self._audit.add(connection, actor or self._actor(), action, change)


def _token(row: asyncpg.Record) -> Token:
    return Token(
        worker_id=row["worker_id"] or "",
        expired=row["expired"],
        used_by=row["used_by"] or "",
        used_key_sha256=row["used_key_sha256"] or b"",
    )
