"""How fast keys are verified and usage is asked and recorded where there is a lot of both.

Makes a Postgres of its own with 1,000,000 keys and 10,000,000 usage records, 6 GB in a temporary
folder, which takes some minutes, and removes it in the end:

    PYTHONPATH=tests .venv/bin/python -m bench.usage_at_scale

Lookups should take less than 5 ms, and questions about an account less than 50 ms.
"""

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random

import asyncpg
from generated_usage import account_id, add_keys, add_records, key_id, key_sha256

from auth_service import queries
from auth_service.database import Database
from auth_service.key_lookup import KeyLookup
from auth_service.keys import Pepper, Peppers
from auth_service.migrate import migrate
from auth_service.usage import Days, Place, UsageRecord, UsageStatus
from auth_service.usage_store import UsageStore
from fastrun.local.postgres import Postgres

PEPPERS = Peppers(Pepper(1, b"p" * 32))
SPAN_DAYS = 90


class Scale:
    """One filled database, and what is measured on it."""

    def __init__(self, dsn: str, accounts: int, keys: int, records: int) -> None:
        self._dsn = dsn
        self._accounts = accounts
        self._keys = keys
        self._records = records
        self._random = Random(1)

    async def run(self) -> None:
        """Fill, measure and print."""
        await migrate(self._dsn)
        last = await self._fill()
        database = await Database.open(self._dsn)
        try:
            lookup, usage = KeyLookup(database, PEPPERS, deadline_s=5), UsageStore(database)
            await self._measure(database, lookup, usage, last)
        finally:
            await database.close()

    async def _fill(self) -> date:
        connection = await asyncpg.connect(self._dsn)
        size = {"accounts": self._accounts, "keys": self._keys}
        start = time.monotonic()
        await add_keys(connection, PEPPERS, **size)
        print(f"{self._keys:,} keys: {time.monotonic() - start:.0f} s")
        start = time.monotonic()
        today = datetime.now(UTC).date()
        first_day = today - timedelta(SPAN_DAYS - 1)
        await add_records(
            connection, **size, records=self._records, days=SPAN_DAYS, first_day=first_day
        )
        print(f"{self._records:,} records: {time.monotonic() - start:.0f} s")
        took = []
        for number in range(SPAN_DAYS):
            start = time.monotonic()
            day = today - timedelta(number)
            await connection.execute("begin")
            await connection.execute(queries.load()["lock_usage_days"])
            await connection.fetch(queries.load()["recompute_usage_day"], day, timeout=600)
            await connection.execute("commit")
            took.append(time.monotonic() - start)
        print(f"{SPAN_DAYS} days summed: {sum(took):.0f} s, the slowest {max(took):.1f} s")
        await connection.execute("vacuum analyze usage_days", timeout=600)
        for table in ("keys", "usage_records", "usage_days"):
            rows, size_mb = await connection.fetchrow(
                f"select count(*), pg_total_relation_size('{table}') >> 20 from {table}"
            )
            print(f"{table}: {rows:,} rows, {size_mb:,} MiB with indexes")
        await connection.close()
        return today

    async def _measure(
        self, database: Database, lookup: KeyLookup, usage: UsageStore, last: date
    ) -> None:
        year, month, day = (Days(last - timedelta(n - 1), last) for n in (366, 30, 1))
        await self._each("nothing, to compare", 5000, lambda: self._nothing(database))
        await self._each("verify, any key", 5000, lambda: self._verify(lookup, 1))
        await self._each("verify, busy keys", 5000, lambda: self._verify(lookup, 3))
        for days, name in ((month, "30 days"), (year, "366 days")):
            for skew, whose in ((1, "any account"), (3, "busy accounts")):

                def ask(days: Days = days, skew: int = skew) -> Awaitable[object]:
                    return usage.of_account(account_id(self._pick(self._accounts, skew)), days)

                await self._each(f"usage of {whose}, {name}", 1000, ask)
        await self._each(
            "usage of the busiest account, 366 days",
            100,
            lambda: usage.of_account(account_id(0), year),
        )
        await self._each(
            "usage of a key, 366 days",
            1000,
            lambda: self._of_key(usage, year),
        )
        await self._each(
            "a page of the usage of all accounts, one model, today",
            100,
            lambda: usage.of_all(day, model="model-1"),
        )
        await self._each(
            "a page of the usage of all accounts, 366 days, somewhere in it",
            100,
            lambda: usage.of_all(year, after=self._somewhere(last)),
        )
        records = iter(range(1_000_000))
        await self._each("record 1,000", 50, lambda: self._record(usage, records))
        await self._each(
            "record the same 1,000 again", 50, lambda: self._record(usage, iter(range(1000)))
        )
        recording = asyncio.create_task(self._keep_recording(usage, records))
        await self._each(
            "verify while 1,000 are recorded all the time", 3000, lambda: self._verify(lookup, 3)
        )
        recording.cancel()
        await asyncio.gather(recording, return_exceptions=True)
        for days, name in (
            (day, "today"),
            (Days(last - timedelta(1), last - timedelta(1)), "a day"),
        ):
            start = time.monotonic()
            changed = await usage.recompute(days)
            print(f"recompute {name}: {time.monotonic() - start:.2f} s, {changed} sums changed")

    def _somewhere(self, last: date) -> Place:
        day = last - timedelta(self._random.randrange(SPAN_DAYS))
        return Place(day, account_id(self._pick(self._accounts, 1)), "")

    async def _each(self, name: str, count: int, ask: Callable[[], Awaitable[object]]) -> None:
        """Ask one after the other, and print how long it took."""
        for _ in range(count // 10):
            await ask()
        took = []
        for _ in range(count):
            start = time.perf_counter()
            await ask()
            took.append((time.perf_counter() - start) * 1000)
        took.sort()
        p50, p99 = took[count // 2], took[count * 99 // 100]
        print(f"{name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, most {took[-1]:.2f} ms", flush=True)

    def _pick(self, most: int, skew: int) -> int:
        """Any of so many; with a skew rather one of the first, as generated usage has it."""
        return int(most * self._random.random() ** skew)

    async def _nothing(self, database: Database) -> None:
        await database.within(lambda connection: connection.fetch("select 1"))

    async def _verify(self, lookup: KeyLookup, skew: int) -> None:
        assert await lookup.verify(key_sha256(self._pick(self._keys, skew)))

    async def _of_key(self, usage: UsageStore, days: Days) -> None:
        key = self._pick(self._keys, 3)
        await usage.of_account(account_id(key % self._accounts), days, key_id=key_id(key))

    async def _record(self, usage: UsageStore, numbers: Iterator[int]) -> None:
        at = time.time()
        records = []
        for _, number in zip(range(1000), numbers, strict=False):
            key = self._pick(self._keys, 3)
            records.append(
                UsageRecord(
                    request_id=f"new{number}",
                    account_id=account_id(key % self._accounts),
                    key_id=key_id(key),
                    model=f"model-{number % 5}",
                    worker_id="worker-1",
                    prompt_tokens=100,
                    cached_tokens=10,
                    completion_tokens=50,
                    reasoning_tokens=0,
                    first_token_ms=100,
                    duration_ms=2000,
                    finish="stop",
                    status=UsageStatus.COMPLETED,
                    started_at=at,
                )
            )
        await usage.record(records)

    async def _keep_recording(self, usage: UsageStore, numbers: Iterator[int]) -> None:
        while True:
            await self._record(usage, numbers)


def main() -> None:
    """Read how much, and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accounts", type=int, default=50_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=10_000_000)
    told = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fastrun-scale-"))
    server = Postgres(folder, durable=False, remove=folder)
    try:
        asyncio.run(Scale(server.start(), told.accounts, told.keys, told.records).run())
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
