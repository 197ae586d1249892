"""Usage and prices over gRPC, with a real Postgres behind it."""

import json
import time
from datetime import UTC, datetime, timedelta
from random import SystemRandom

import grpc
import pytest

from auth_service.__main__ import AuthService
from auth_service.config import Config
from fastrun.service import api_key, rpc
from fastrun.service.errors import ServiceError
from fastrun.v1 import admin_pb2, admin_pb2_grpc, auth_pb2, auth_pb2_grpc
from fastrun.v1.error_pb2 import ErrorReason

DAY = "2028-02-29"
NOON = datetime(2028, 2, 29, 12, tzinfo=UTC).timestamp()
TODAY = {
    "first_day": (datetime.now(UTC) - timedelta(1)).date().isoformat(),
    "last_day": (datetime.now(UTC) + timedelta(1)).date().isoformat(),
}
DAYS = {"first_day": DAY, "last_day": DAY}


@pytest.fixture
async def stubs(database):
    """Stubs of a running service: (AuthService, AdminService)."""
    service = AuthService(
        Config(
            database_url=database,
            pepper="ab" * 32,
            listen="127.0.0.1:0",
            admin_listen="127.0.0.1:0",
        )
    )
    ports = await service.start()
    channel = rpc.channel(f"127.0.0.1:{ports['grpc']}")
    yield auth_pb2_grpc.AuthServiceStub(channel), admin_pb2_grpc.AdminServiceStub(channel)
    await channel.close()
    await service.stop()


def record(request_id="r1", **fields):
    told = {
        "account_id": "acct_1",
        "key_id": "key_1",
        "model": "m",
        "worker_id": "w",
        "status": auth_pb2.USAGE_STATUS_COMPLETED,
        "started_at": NOON,
    }
    return auth_pb2.UsageRecord(request_id=request_id, **(told | fields))


async def recorded(auth, *records):
    return (await auth.RecordUsage(auth_pb2.RecordUsageRequest(records=records))).recorded


async def used(auth, account_id="acct_1", **fields):
    request = auth_pb2.QueryUsageRequest(account_id=account_id, **(DAYS | fields))
    return list((await auth.QueryUsage(request)).sums)


async def used_by_all(admin, **fields):
    request = admin_pb2.AdminServiceQueryUsageRequest(**(DAYS | fields))
    sums = []
    while True:
        answer = await admin.QueryUsage(request)
        sums += answer.sums
        request.page_token = answer.next_page_token
        if not request.page_token:
            return sums


async def set_price(admin, model, *micros):
    price = admin_pb2.Price(
        model=model,
        prompt_micros=micros[0],
        cached_micros=micros[1],
        completion_micros=micros[2],
    )
    return (await admin.SetPrice(admin_pb2.SetPriceRequest(price=price))).price


async def refusal_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return ServiceError.of_rpc(caught.value).detail


async def test_recorded_and_asked(stubs):
    """What an edge records once is told to the account and to operators; no price, no cost."""
    auth, admin = stubs
    assert await recorded(auth) == 0
    one = record(prompt_tokens=3, cached_tokens=1, completion_tokens=2, reasoning_tokens=0)
    assert await recorded(auth, one, record("r2", status=auth_pb2.USAGE_STATUS_LOST)) == 2
    assert await recorded(auth, one) == 0
    (total,) = await used(auth)
    assert total == auth_pb2.UsageSum(
        day=DAY,
        account_id="acct_1",
        model="m",
        requests=2,
        prompt_tokens=3,
        cached_tokens=1,
        completion_tokens=2,
        lost_requests=1,
    )
    assert not total.HasField("cost_micros")
    assert await used(auth, key_id="key_1") == await used_by_all(admin) == [total]
    assert await used(auth, "acct_2") == await used_by_all(admin, model="another") == []


@pytest.mark.parametrize("page", [3, 1000])
async def test_order(stubs, monkeypatch, page):
    """Sums come by day, then by account, then by model, also when they take several pages."""
    monkeypatch.setattr("auth_service.usage_store.PAGE_SUMS", page)
    auth, admin = stubs
    names = [(day, account, model) for day in range(2) for account in "ab" for model in "xy"]
    await recorded(
        auth,
        *(
            record(f"r{n}", account_id=account, model=model, started_at=NOON + day * 86_400)
            for n, (day, account, model) in enumerate(reversed(names))
        ),
    )
    told = await used_by_all(admin, last_day="2028-03-01")
    assert [(each.day, each.account_id, each.model) for each in told] == [
        (("2028-02-29", "2028-03-01")[day], account, model) for day, account, model in names
    ]
    told = await used(auth, "b", last_day="2028-03-01")
    assert [(each.day, each.model) for each in told] == [
        (day, model) for day in ("2028-02-29", "2028-03-01") for model in "xy"
    ]


async def test_an_account_by_name(stubs):
    """Operators ask by an account's id or name, and are told if there is none."""
    auth, admin = stubs
    account = (await admin.CreateAccount(admin_pb2.CreateAccountRequest(name="ada"))).account
    await recorded(auth, record(account_id=account.account_id), record("r2"))
    (total,) = await used_by_all(admin, account="ada")
    assert total.account_id == account.account_id
    assert await used_by_all(admin, account=account.account_id) == [total]
    wrong = await refusal_of(used_by_all(admin, account="bob"))
    assert wrong.reason == ErrorReason.ERROR_REASON_NOT_FOUND


async def test_cost(stubs):
    """A request costs what was the price when it came, exactly, and is rounded once, half up."""
    auth, admin = stubs
    now = time.time()
    first = await set_price(admin, "m", 1_000_000, 500_000, 2_000_000)
    assert now - 60 < first.valid_from < now + 60
    before = record("before", prompt_tokens=1, started_at=first.valid_from - 0.001)
    then = first.valid_from + 0.000_01
    tokens = {"prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 5}
    at_first = record("first", **tokens, started_at=then)
    # Half a micro, and less than that: together with the others they are rounded, not each.
    half = record("half", cached_tokens=1, started_at=then)
    await recorded(auth, before, at_first)
    (total,) = await used(auth, **TODAY)
    assert total.cost_micros == 6 * 1 + 4 * 0.5 + 5 * 2
    await recorded(auth, half)
    (total,) = await used(auth, **TODAY)
    assert total.cost_micros == 19  # 18.5
    await recorded(auth, record("half again", cached_tokens=1, started_at=then))
    (total,) = await used(auth, **TODAY)
    assert total.cost_micros == 19  # 19.0

    second = await set_price(admin, "m", 0, 0, 0)
    await recorded(auth, record("late", **tokens, started_at=then))
    await recorded(auth, record("free", **tokens, started_at=second.valid_from + 1))
    (total,) = await used(auth, **TODAY)
    assert total.cost_micros == 19 + 18
    anew = await admin.RecomputeUsage(admin_pb2.RecomputeUsageRequest(**TODAY))
    assert anew.changed == 0


async def test_prices(stubs):
    """The current prices are listed by model; setting the same again changes nothing."""
    _, admin = stubs
    assert not (await admin.ListPrices(admin_pb2.ListPricesRequest())).prices
    second = await set_price(admin, "b", 1, 2, 3)
    await set_price(admin, "a", 1, 1, 1)
    assert await set_price(admin, "b", 1, 2, 3) == second
    first = await set_price(admin, "a", 9, 9, 9)
    back = await set_price(admin, "b", 1, 2, 3)
    assert back == second
    assert list((await admin.ListPrices(admin_pb2.ListPricesRequest())).prices) == [first, second]
    audit = (await admin.ListAudit(admin_pb2.ListAuditRequest())).records
    assert [each.action for each in audit] == ["price_set"] * 3
    assert json.loads(audit[0].change_json) == {
        "model": {"from": None, "to": "a"},
        "prompt_micros": {"from": 1, "to": 9},
        "cached_micros": {"from": 1, "to": 9},
        "completion_micros": {"from": 1, "to": 9},
    }


async def test_month_tokens(stubs):
    """VerifyKey tells what account and key have used in this month."""
    auth, admin = stubs
    await admin.CreateAccount(admin_pb2.CreateAccountRequest(name="ada"))
    secrets = [api_key.generate(SystemRandom()) for _ in range(2)]
    keys = [
        (
            await admin.IssueKey(
                admin_pb2.IssueKeyRequest(
                    account="ada",
                    key_sha256=api_key.key_sha256(secret),
                    prefix=secret[: api_key.PREFIX_LENGTH],
                )
            )
        ).key
        for secret in secrets
    ]
    fields = {"account_id": keys[0].account_id, "started_at": time.time()}
    await recorded(
        auth,
        record("r1", key_id=keys[0].key_id, prompt_tokens=2, completion_tokens=3, **fields),
        record("r2", key_id=keys[1].key_id, prompt_tokens=10, **fields),
        record("r3", key_id=keys[1].key_id, status=auth_pb2.USAGE_STATUS_LOST, **fields),
    )
    for secret, of_key in zip(secrets, (5, 10), strict=True):
        request = auth_pb2.VerifyKeyRequest(key_sha256=api_key.key_sha256(secret))
        answer = await auth.VerifyKey(request)
        assert (answer.account_month_tokens, answer.key_month_tokens) == (15, of_key)


async def test_refusals(stubs):
    """What makes no sense is refused, with the field that is wrong, and nothing is recorded."""
    auth, admin = stubs
    recompute = admin_pb2.RecomputeUsageRequest(first_day=DAY, last_day="2030-01-01")
    cases = [
        (recorded(auth, record(), record("r2", status=0)), "the status of 'r2' is not known"),
        (recorded(auth, record(), record("r2", status=99)), "the status of 'r2' is not known"),
        (recorded(auth, record(), record("")), "records[1]: request_id must not be empty"),
        (recorded(auth, record(prompt_tokens=2**64 - 1)), "records[0]: prompt_tokens must be"),
        (recorded(auth, *(record(f"r{n}") for n in range(1001))), "at most 1000"),
        (used(auth, ""), "account_id must not be empty"),
        (used(auth, first_day="yesterday"), "first_day must be a day"),
        (used(auth, first_day="2028-03-01"), "last_day must not be before first_day"),
        (used_by_all(admin, last_day="2029-03-01"), "at most 366 days"),
        (admin.RecomputeUsage(recompute), "at most 366 days"),
        (set_price(admin, "", 0, 0, 0), "model must be"),
        (set_price(admin, "m", 0, -1, 0), "cached_micros must be from 0"),
    ]
    for call, message in cases:
        refusal = await refusal_of(call)
        assert refusal.reason == ErrorReason.ERROR_REASON_INVALID_REQUEST
        assert message in refusal.message
    assert await used_by_all(admin) == []
