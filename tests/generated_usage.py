"""Accounts, keys and usage by the million, made within Postgres, for tests of size."""

import hashlib
from datetime import date

import asyncpg

from auth_service.keys import Peppers

FIRST_DAY = date(2028, 1, 1)
MODELS = 5


def key_sha256(number: int) -> bytes:
    """SHA-256 of a generated key; they are numbered from 0."""
    return hashlib.sha256(b"%d" % number).digest()


def account_id(number: int) -> str:
    """The id of a generated account; key n is of account n modulo their number."""
    return f"acct_{number:07}"


def key_id(number: int) -> str:
    """The id of a generated key."""
    return f"key_{number:07}"


async def add_keys(
    connection: asyncpg.Connection, peppers: Peppers, *, accounts: int, keys: int
) -> None:
    """Add approved accounts and their keys, without an event or an audit record for each."""
    async with connection.transaction():
        await connection.execute("set local session_replication_role = replica")
        await connection.copy_records_to_table(
            "accounts",
            columns=["id", "name", "state", "cache_salt"],
            records=((account_id(n), f"account {n}", "approved", "salt") for n in range(accounts)),
            timeout=600,
        )
        pepper = peppers.current
        await connection.copy_records_to_table(
            "keys",
            columns=["id", "account_id", "name", "prefix", "digest", "pepper_id"],
            records=(
                (
                    *(key_id(n), account_id(n % accounts), "", "fr_abcde"),
                    *(pepper.digest(key_sha256(n)), pepper.id),
                )
                for n in range(keys)
            ),
            timeout=600,
        )
    await connection.execute("vacuum analyze accounts, keys", timeout=600)


async def add_records(
    connection: asyncpg.Connection,
    *,
    accounts: int,
    keys: int,
    records: int,
    days: int,
    first_day: date = FIRST_DAY,
) -> None:
    """Add usage records in the order of time, most of them of few keys."""
    await connection.execute(
        """
        insert into usage_records
        select
            md5(n::text), 'acct_' || lpad((key % $2)::text, 7, '0'), 'key_' || lpad(key::text, 7, '0'),
            'model-' || n % $5, 'worker-1', n % 1000, n % 100, n % 500, n % 50, 100, 2000,
            'stop', 'completed', $1::date::timestamp at time zone 'UTC' + n * interval '1 day' * $4 / $3
        from (
            select n, floor($6 * power(random(), 3))::bigint as key
            from generate_series(0::bigint, $3::bigint - 1) as n
        ) as each
        """,
        *(first_day, accounts, records, float(days), MODELS, float(keys)),
        timeout=1200,
    )
    await connection.execute("vacuum analyze usage_records", timeout=600)
