"""Usage in a real Postgres: what counts once, what is summed, and that sums can be made anew."""

import asyncio
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from random import Random

import asyncpg
import pytest
from auth_stores import PEPPERS, new_key, open_stores, usage_of_all
from generated_usage import FIRST_DAY, account_id, add_keys, add_records
from msgspec import structs

from auth_service import queries, usage
from auth_service.errors import InvalidFieldError, StoreUnavailableError
from auth_service.prices import Price
from auth_service.usage import MOST_SUMS, PAGE_SUMS, Days, UsageRecord, UsageStatus, UsageSum
from auth_service.usage_store import UsageStore
from fastrun.service import api_key

DAY = date(2028, 2, 29)
DAYS = Days(DAY, DAY)
NOON = datetime(2028, 2, 29, 12, tzinfo=UTC).timestamp()
RECORD = UsageRecord(
    request_id="r1",
    account_id="acct_1",
    key_id="key_1",
    model="m",
    worker_id="w",
    prompt_tokens=10,
    cached_tokens=4,
    completion_tokens=5,
    reasoning_tokens=2,
    first_token_ms=5,
    duration_ms=6,
    finish="stop",
    status=UsageStatus.COMPLETED,
    started_at=NOON,
)
UNKNOWN = {
    "prompt_tokens": None,
    "cached_tokens": None,
    "completion_tokens": None,
    "reasoning_tokens": None,
    "first_token_ms": None,
    "duration_ms": None,
    "worker_id": "",
    "finish": "",
    "status": UsageStatus.LOST,
}
SUM = UsageSum(
    day=DAY,
    account_id="acct_1",
    model="m",
    requests=1,
    prompt_tokens=10,
    cached_tokens=4,
    completion_tokens=5,
    reasoning_tokens=2,
    lost_requests=0,
    cost_micros=None,
)


def sums_of(records):
    """What the sums of records must be, by day, account and model; without prices."""
    totals = defaultdict(lambda: [0] * 6)
    for record in {record.request_id: record for record in records}.values():
        day = datetime.fromtimestamp(record.started_at, UTC).date()
        total = totals[day, record.account_id, record.model]
        counts = (
            1,
            record.prompt_tokens or 0,
            record.cached_tokens or 0,
            record.completion_tokens or 0,
            record.reasoning_tokens or 0,
            record.status is UsageStatus.LOST,
        )
        total[:] = [have + more for have, more in zip(total, counts, strict=True)]
    return [
        UsageSum(
            day=day,
            account_id=account_id,
            model=model,
            requests=total[0],
            prompt_tokens=total[1],
            cached_tokens=total[2],
            completion_tokens=total[3],
            reasoning_tokens=total[4],
            lost_requests=total[5],
            cost_micros=None,
        )
        for (day, account_id, model), total in sorted(totals.items())
    ]


def many(random, count):
    """Records of a few accounts, keys and models, around the ends of two days."""
    return [
        replace(
            RECORD,
            request_id=f"r{number:05}",
            account_id=f"acct_{account}",
            key_id=f"key_{account}_{random.randrange(2)}",
            model=random.choice("xyz"),
            started_at=NOON + random.choice([-43_200.001, -43_200.0, 0.0, 43_199.999, 43_200.0]),
            **(UNKNOWN if random.random() < 0.2 else {"prompt_tokens": random.randrange(9)}),
        )
        for number in range(count)
        for account in [random.randrange(3)]
    ]


async def spoil(stores, *statements):
    for statement in statements:
        await stores.ask(statement)


async def test_a_record_is_summed(stores):
    """A record shows in the sums of its day, account and model, and of its key."""
    assert await stores.usage.record([RECORD]) == 1
    assert await stores.usage.of_account("acct_1", DAYS) == [SUM]
    assert await stores.usage.of_account("acct_1", DAYS, key_id="key_1", model="m") == [SUM]
    assert await usage_of_all(stores.usage, DAYS) == [SUM]
    assert await usage_of_all(stores.usage, DAYS, model="m") == [SUM]
    for nothing in (
        stores.usage.of_account("acct_2", DAYS),
        stores.usage.of_account("acct_1", DAYS, key_id="key_2"),
        stores.usage.of_account("acct_1", DAYS, model="another"),
        stores.usage.of_account("acct_1", Days(DAY + timedelta(1), DAY + timedelta(2))),
        usage_of_all(stores.usage, DAYS, model="another"),
        stores.usage.of_account("\0", DAYS),
    ):
        assert await nothing == []


async def test_a_record_counts_once(stores):
    """A record that comes again, alone or within one batch, changes nothing: the first one stands."""
    again = replace(RECORD, prompt_tokens=99)
    assert await stores.usage.record([RECORD, again]) == 1
    assert await stores.usage.record([again]) == 0
    assert await stores.usage.record([again, replace(RECORD, request_id="r2")]) == 1
    assert await usage_of_all(stores.usage, DAYS) == [
        structs.replace(
            SUM,
            requests=2,
            prompt_tokens=20,
            cached_tokens=8,
            completion_tokens=10,
            reasoning_tokens=4,
        )
    ]


async def test_nothing_to_record(stores):
    """An empty batch is taken, also while Postgres is away."""
    assert await stores.usage.record([]) == 0


async def test_a_refused_batch_leaves_nothing(stores):
    """If one record of a batch cannot be kept, none is."""
    with pytest.raises(InvalidFieldError, match=r"records\[1\]: model must not be empty"):
        await stores.usage.record([RECORD, replace(RECORD, request_id="r2", model="")])
    assert await usage_of_all(stores.usage, DAYS) == []


async def test_unknown_is_not_zero(stores):
    """Counts that nobody knows are kept as null and counted as lost; zeros are kept as zeros."""
    lost = replace(RECORD, request_id="lost", **UNKNOWN)
    zeros = {field: 0 for field, value in UNKNOWN.items() if value is None}
    zero = replace(RECORD, request_id="zero", **zeros)
    partial = replace(RECORD, request_id="partial", prompt_tokens=None)
    assert await stores.usage.record([lost, zero, partial]) == 3
    rows = {row["request_id"]: row for row in await stores.ask("select * from usage_records")}
    for field in zeros:
        assert rows["lost"][field] is None
        assert rows["zero"][field] == 0
    (total,) = await usage_of_all(stores.usage, DAYS)
    assert (total.requests, total.lost_requests, total.completion_tokens) == (3, 1, 5)


async def test_all_of_a_record_is_kept(stores):
    """Every field of a record can be read again."""
    await stores.usage.record([RECORD])
    fields = {field: getattr(RECORD, field) for field in RECORD.__dataclass_fields__}
    columns = ", ".join(fields).replace("started_at", "extract(epoch from started_at)::float8")
    (row,) = await stores.ask(f"select {columns} from usage_records")
    assert list(row.values()) == list(fields.values())


async def test_at_least_once_from_two_edges(database):
    """Whatever two edges deliver at once, again and in any order, each request counts once."""
    random = Random(7)
    stores = [await open_stores(database, random=random) for _ in range(2)]
    records = many(random, 400)

    async def deliver(store):
        batches = [random.sample(records, 100) for _ in range(6)]
        batches += [records[start : start + 50] for start in range(0, 400, 50)]
        random.shuffle(batches)
        return sum(await asyncio.gather(*[store.usage.record(batch) for batch in batches]))

    try:
        assert sum(await asyncio.gather(*map(deliver, stores))) == 400
        around = Days(DAY - timedelta(1), DAY + timedelta(1))
        assert await usage_of_all(stores[0].usage, around) == sums_of(records)
        for account in range(3):
            whose = f"acct_{account}"
            theirs = [record for record in records if record.account_id == whose]
            assert await stores[1].usage.of_account(whose, around) == sums_of(theirs)
            for key_id in (f"key_{account}_0", f"key_{account}_1"):
                of_key = [record for record in theirs if record.key_id == key_id]
                found = await stores[1].usage.of_account(whose, around, key_id=key_id)
                assert found == sums_of(of_key)
        assert await stores[0].usage.recompute(around) == 0
    finally:
        for store in stores:
            await store.close()


async def test_recomputed(stores):
    """Sums that were lost, spoilt or made up are as they were once they are computed anew."""
    await stores.prices.set(Price("x", 3, 2, 1))
    now = datetime.now(UTC)
    days = Days(now.date(), now.date() + timedelta(1))
    records = [replace(each, started_at=now.timestamp() + 1) for each in many(Random(3), 60)]
    await stores.usage.record(records)
    right = await usage_of_all(stores.usage, days)
    assert [each.cost_micros is not None for each in right] == [each.model == "x" for each in right]
    kept = await stores.ask("select * from usage_days order by account_id, key_id, day, model")
    await spoil(
        stores,
        "delete from usage_days where account_id = 'acct_1' and key_id = ''",
        "update usage_days set requests = requests + 1 where account_id = 'acct_0' and model = 'y'",
        "update usage_days set cost_picos = null where account_id = 'acct_0' and model = 'x'",
        "insert into usage_days select 'made_up', key_id, day, model, 1, 1, 1, 1, 1, 1, 1 "
        "from usage_days where key_id = '' limit 1",
    )
    assert await usage_of_all(stores.usage, days) != right
    assert await stores.usage.recompute(days) == 3 + 3 + 3 + 1
    assert await usage_of_all(stores.usage, days) == right
    again = await stores.ask("select * from usage_days order by account_id, key_id, day, model")
    assert again == kept
    assert await stores.usage.recompute(days) == 0


async def test_recomputed_while_records_come(database):
    """Nothing is lost or doubled when sums are computed anew while edges record."""
    stores = await open_stores(database, random=Random(1))
    records = many(Random(5), 300)
    around = Days(DAY - timedelta(1), DAY + timedelta(1))
    try:

        async def record():
            for start in range(0, 300, 5):
                await stores.usage.record(records[start : start + 5])

        async def recompute():
            while not recording.done():
                await stores.usage.recompute(around)

        recording = asyncio.create_task(record())
        await asyncio.gather(recording, recompute())
        assert await usage_of_all(stores.usage, around) == sums_of(records)
        assert await stores.usage.recompute(around) == 0
    finally:
        await stores.close()


async def test_keys_know_when_they_were_used(stores):
    """A recorded request shows when its key was last used, to the minute, and never goes back."""
    await stores.accounts.create("one")
    key = await stores.keys.issue("one", new_key(api_key.generate(Random(4))))
    for request_id, at in (("r1", NOON + 61.5), ("r2", NOON), ("r3", NOON + 119)):
        record = replace(RECORD, request_id=request_id, key_id=key.key_id, started_at=at)
        await stores.usage.record([record])
        (listed,) = await stores.keys.list()
        assert listed.last_used_at == NOON + 60


async def test_a_key_in_change_delays_no_record(stores):
    """A record does not wait for whoever holds its key's row; the key is noted another time."""
    await stores.accounts.create("one")
    key = await stores.keys.issue("one", new_key(api_key.generate(Random(4))))
    holder = await asyncpg.connect(stores.dsn)
    try:
        async with holder.transaction():
            await holder.execute("select from keys for update")
            assert await stores.usage.record([replace(RECORD, key_id=key.key_id)]) == 1
    finally:
        await holder.close()
    assert (await stores.keys.list())[0].last_used_at is None


async def test_month_tokens(stores):
    """A lookup tells what account and key have used since the month began, and nothing older."""
    account = await stores.accounts.create("one")
    secrets = [api_key.generate(Random(seed)) for seed in (1, 2)]
    keys = [await stores.keys.issue("one", new_key(secret)) for secret in secrets]
    now = datetime.now(UTC)
    began = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    await stores.usage.record(
        [
            replace(
                RECORD,
                request_id=f"r{number}",
                account_id=account.account_id,
                key_id=keys[number % 2].key_id,
                model=f"m{number}",
                prompt_tokens=10**number,
                completion_tokens=0,
                started_at=at,
            )
            for number, at in enumerate(
                [now.timestamp(), began.timestamp(), began.timestamp() + 1, began.timestamp() - 1]
            )
        ]
    )
    told = [await stores.verify(secret) for secret in secrets]
    assert [identity.account_month_tokens for identity in told] == [111, 111]
    assert [identity.key_month_tokens for identity in told] == [101, 10]


async def test_lookups_find_connections(database):
    """While usage waits for a lock, keys are still looked up."""
    stores = await open_stores(database, random=Random(1), deadline_s=20)
    holder = await asyncpg.connect(database)
    try:
        async with holder.transaction():
            await holder.execute(queries.load()["lock_usage_days"])
            waiting = [
                asyncio.create_task(stores.usage.record([replace(RECORD, request_id=f"r{number}")]))
                for number in range(20)
            ]
            assert await asyncio.gather(*[stores.verify(f"k{n}") for n in range(50)]) == [None] * 50
            assert not any(task.done() for task in waiting)
        assert await asyncio.gather(*waiting) == [1] * 20
    finally:
        await holder.close()
        await stores.close()


async def test_waiting_has_an_end(stores):
    """A batch that waits for a lock is given up at its deadline, and can be delivered again."""
    store = UsageStore(stores.database, deadline_s=0.2)
    holder = await asyncpg.connect(stores.dsn)
    try:
        async with holder.transaction():
            await holder.execute(queries.load()["lock_usage_days"])
            calls = [store.record([replace(RECORD, request_id=f"r{n}")]) for n in range(20)]
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(each) for each in ended} == {StoreUnavailableError}
    finally:
        await holder.close()
    records = [replace(RECORD, request_id=f"r{n}") for n in range(20)]
    await stores.usage.record(records)
    assert await usage_of_all(stores.usage, DAYS) == sums_of(records)


async def test_too_much_to_tell(stores, monkeypatch):
    """More sums of an account than an answer holds are refused rather than cut off."""
    monkeypatch.setattr("auth_service.usage_store.MOST_SUMS", 2)
    monkeypatch.setattr(usage, "MOST_SUMS", 2)
    records = [replace(RECORD, request_id=f"r{n}", model=f"m{n}") for n in range(3)]
    await stores.usage.record(records[:2])
    assert len(await stores.usage.of_account("acct_1", DAYS)) == 2
    await stores.usage.record(records)
    with pytest.raises(InvalidFieldError, match="more than 2 sums"):
        await stores.usage.of_account("acct_1", DAYS)


@pytest.mark.parametrize("page", [1, 2, 7, 1000])
async def test_pages(stores, monkeypatch, page):
    """Whatever a page holds, all pages together tell each sum of all accounts once, in order."""
    monkeypatch.setattr("auth_service.usage_store.PAGE_SUMS", page)
    records = [
        replace(
            RECORD,
            request_id=f"{account} {model} {day}",
            account_id=account,
            model=model,
            started_at=RECORD.started_at + day * 86_400,
        )
        for account in ("a", "b")
        for model in ("x", "y")
        for day in range(3)
    ]
    await stores.usage.record(records)
    days = Days(DAY, DAY + timedelta(2))
    sums = await usage_of_all(stores.usage, days)
    places = [(each.day, each.account_id, each.model) for each in sums]
    assert places == sorted(set(places))
    assert len(places) == len(records)
    of_x, _ = await stores.usage.of_all(days, model="x")
    assert {each.model for each in of_x} == {"x"}


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
async def test_queries_use_their_indexes(stores, plans):
    """Of a table with many rows each query reads by indexes alone what it needs."""
    days = (FIRST_DAY, FIRST_DAY + timedelta(9))
    cases = {  # which of the indexes of sums is better depends on how many days and keys there are
        "usage_of_account": (["usage_days_"], [account_id(1), "", *days, None, MOST_SUMS]),
        "usage_of_all": (["usage_days_"], [*days, None, days[0], "", "", PAGE_SUMS]),
        "add_to_usage_days": (["usage_records_pkey"], [["r1", "r2"]]),
        "recompute_usage_day": (["usage_records_by_time", "usage_days_by_day"], [FIRST_DAY]),
        "find_identities": (["usage_days_pkey", "keys_digest_key"], [[b"0" * 32]]),
    }
    connection = await asyncpg.connect(stores.dsn)
    try:
        await add_keys(connection, PEPPERS, accounts=500, keys=5000)
        await add_records(connection, accounts=500, keys=5000, records=50_000, days=30)
        await stores.usage.recompute(Days(FIRST_DAY, FIRST_DAY + timedelta(29)))
        await connection.execute("vacuum analyze usage_days")
        await connection.execute(f"set plan_cache_mode = {plans}")
        for name, (indexes, arguments) in cases.items():
            sql = f"explain (analyze, buffers, timing off) {queries.load()[name]}"
            async with connection.transaction():
                plan = "\n".join(row[0] for row in await connection.fetch(sql, *arguments))
            assert [index for index in indexes if index not in plan] == [], plan
            assert "Seq Scan on usage" not in plan, plan
            assert "Seq Scan on keys" not in plan, plan
    finally:
        await connection.close()
