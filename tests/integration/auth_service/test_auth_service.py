"""The auth service over gRPC, with a real Postgres behind it."""

import asyncio
import hashlib
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import SystemRandom

import grpc
import msgspec
import pytest
from auth_stores import new_key

from auth_service import pepper_record
from auth_service.__main__ import AuthService
from auth_service.config import Config
from auth_service.errors import PepperError
from auth_service.keys import Peppers
from fastrun.local.certificates import provide
from fastrun.service import api_key, rpc
from fastrun.service.errors import ServiceError
from fastrun.service.identity import Identity, Role
from fastrun.service.lifecycle import StartError
from fastrun.service.tls import Tls
from fastrun.v1 import admin_pb2, admin_pb2_grpc, auth_pb2, auth_pb2_grpc
from fastrun.v1.error_pb2 import ErrorReason

PEPPER = "ab" * 32


def settings(database):
    return Config(
        database_url=database,
        pepper=PEPPER,
        listen="127.0.0.1:0",
        admin_listen="127.0.0.1:0",
    )


@asynccontextmanager
async def running(config):
    """Run a service; stubs of it: (AuthService, AdminService)."""
    service = AuthService(config)
    ports = await service.start()
    channel = rpc.channel(f"127.0.0.1:{ports['grpc']}")
    yield auth_pb2_grpc.AuthServiceStub(channel), admin_pb2_grpc.AdminServiceStub(channel)
    await channel.close()
    await service.stop()


@pytest.fixture
async def auth(database):
    """Stubs of a running service, with the usual settings."""
    async with running(settings(database)) as stubs:
        yield stubs


async def reason_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), ServiceError.of_rpc(caught.value).detail.reason


async def issue(admin, account):
    key = api_key.generate(SystemRandom())
    answer = await admin.IssueKey(
        admin_pb2.IssueKeyRequest(
            account=account,
            name="laptop",
            key_sha256=api_key.key_sha256(key),
            prefix=key[: api_key.PREFIX_LENGTH],
        )
    )
    return key, answer.key


async def test_an_account_from_pending_to_suspended(auth):
    """VerifyKey tells the state that the operator set last."""
    verify, admin = auth
    account = (await admin.CreateAccount(admin_pb2.CreateAccountRequest(name="ada"))).account
    assert account.state == auth_pb2.ACCOUNT_STATE_PENDING
    key, issued = await issue(admin, "ada")
    request = auth_pb2.VerifyKeyRequest(key_sha256=api_key.key_sha256(key))

    answer = await verify.VerifyKey(request)
    assert (answer.account_id, answer.key_id) == (account.account_id, issued.key_id)
    assert answer.account_state == auth_pb2.ACCOUNT_STATE_PENDING
    assert answer.cache_salt

    await admin.ApproveAccount(admin_pb2.ApproveAccountRequest(account="ada"))
    assert (await verify.VerifyKey(request)).account_state == auth_pb2.ACCOUNT_STATE_APPROVED
    await admin.SuspendAccount(admin_pb2.SuspendAccountRequest(account=account.account_id))
    assert (await verify.VerifyKey(request)).account_state == auth_pb2.ACCOUNT_STATE_SUSPENDED


async def test_a_revoked_key_is_known_and_revoked(auth):
    """A revoked key is an answer with its state, not an unknown key."""
    verify, admin = auth
    await admin.CreateAccount(admin_pb2.CreateAccountRequest(name="ada"))
    key, issued = await issue(admin, "ada")
    await admin.RevokeKey(admin_pb2.RevokeKeyRequest(key_id=issued.key_id))
    answer = await verify.VerifyKey(auth_pb2.VerifyKeyRequest(key_sha256=api_key.key_sha256(key)))
    assert answer.key_state == auth_pb2.KEY_STATE_REVOKED


async def test_unknown_keys_and_wrong_digests(auth):
    """A key that nobody issued is NOT_FOUND; what is no SHA-256 is INVALID_ARGUMENT."""
    verify, _ = auth
    unknown = auth_pb2.VerifyKeyRequest(key_sha256=hashlib.sha256(b"nobody's").digest())
    assert await reason_of(verify.VerifyKey(unknown)) == (
        grpc.StatusCode.NOT_FOUND,
        ErrorReason.ERROR_REASON_NOT_FOUND,
    )
    short = auth_pb2.VerifyKeyRequest(key_sha256=b"short")
    assert (await reason_of(verify.VerifyKey(short)))[0] == grpc.StatusCode.INVALID_ARGUMENT


async def test_admin_refusals_carry_their_reason(auth):
    """Each refusal of the store has the status that admin.proto promises."""
    _, admin = auth
    await admin.CreateAccount(admin_pb2.CreateAccountRequest(name="ada"))
    cases = [
        (admin.CreateAccount(admin_pb2.CreateAccountRequest(name="ada")), "ALREADY_EXISTS"),
        (admin.CreateAccount(admin_pb2.CreateAccountRequest(name=" ")), "INVALID_ARGUMENT"),
        (admin.ApproveAccount(admin_pb2.ApproveAccountRequest(account="bob")), "NOT_FOUND"),
        (admin.RevokeKey(admin_pb2.RevokeKeyRequest(key_id="key_x")), "NOT_FOUND"),
        (
            admin.SuspendAccount(admin_pb2.SuspendAccountRequest(account="ada")),
            "FAILED_PRECONDITION",
        ),
        (admin.ListAccounts(admin_pb2.ListAccountsRequest(state=0)), "INVALID_ARGUMENT"),
    ]
    for call, status in cases:
        assert (await reason_of(call))[0].name == status


async def test_lists_are_newest_first_and_hold_no_digest(auth):
    """Listing shows prefix and state of each key, and nothing that could pass for it."""
    _, admin = auth
    for name in ("ada", "bob"):
        await admin.CreateAccount(admin_pb2.CreateAccountRequest(name=name))
    accounts = (await admin.ListAccounts(admin_pb2.ListAccountsRequest())).accounts
    assert [account.name for account in accounts] == ["bob", "ada"]
    key, _ = await issue(admin, "bob")
    (listed,) = (await admin.ListKeys(admin_pb2.ListKeysRequest(account="bob"))).keys
    assert listed.prefix == key[:8]
    assert listed.name == "laptop"
    assert not (await admin.ListKeys(admin_pb2.ListKeysRequest(account="ada"))).keys


async def test_an_older_schema_is_refused_at_start(empty_database):
    """Without the migrations the service does not start, and says what to run."""
    service = AuthService(settings(empty_database))
    with pytest.raises(StartError, match="run fastrun migrate"):
        await service.start()
    await service.stop()


async def test_models_limits_and_month(auth):
    """VerifyKey tells which models a key may use, and how much the account and the key may."""
    verify, admin = auth
    await admin.CreateAccount(admin_pb2.CreateAccountRequest(name="ada"))
    key = api_key.generate(SystemRandom())
    await admin.IssueKey(
        admin_pb2.IssueKeyRequest(
            account="ada",
            key_sha256=api_key.key_sha256(key),
            prefix=key[: api_key.PREFIX_LENGTH],
            models=["small", "large"],
        )
    )
    (issued,) = (await admin.ListKeys(admin_pb2.ListKeysRequest(account="ada"))).keys
    ours = auth_pb2.Limits(requests_per_minute=60, concurrent_requests=4)
    mine = auth_pb2.Limits(tokens_per_minute=1000)
    for request in (
        admin_pb2.SetLimitsRequest(account="ada", limits=ours),
        admin_pb2.SetLimitsRequest(key_id=issued.key_id, limits=mine),
    ):
        assert (await admin.SetLimits(request)).limits == request.limits
    answer = await verify.VerifyKey(auth_pb2.VerifyKeyRequest(key_sha256=api_key.key_sha256(key)))
    assert list(answer.models) == ["small", "large"]
    assert (answer.account_limits, answer.key_limits) == (ours, mine)
    assert (answer.account_month_tokens, answer.key_month_tokens) == (0, 0)
    (account,) = (await admin.ListAccounts(admin_pb2.ListAccountsRequest())).accounts
    (listed,) = (await admin.ListKeys(admin_pb2.ListKeysRequest())).keys
    assert (account.limits, listed.limits) == (ours, mine)
    assert list(listed.models) == ["small", "large"]
    assert not listed.HasField("last_used_at")
    assert (await reason_of(admin.SetLimits(admin_pb2.SetLimitsRequest(limits=ours))))[0] == (
        grpc.StatusCode.INVALID_ARGUMENT
    )


async def test_rotate_close_and_audit(auth):
    """The audit tells who did what, newest first; without certificates it cannot tell who."""
    verify, admin = auth
    await admin.CreateAccount(admin_pb2.CreateAccountRequest(name="ada"))
    _, old = await issue(admin, "ada")
    fresh = api_key.generate(SystemRandom())
    rotated = await admin.RotateKey(
        admin_pb2.RotateKeyRequest(
            key_id=old.key_id,
            key_sha256=api_key.key_sha256(fresh),
            prefix=fresh[: api_key.PREFIX_LENGTH],
            overlap_s=60,
        )
    )
    assert rotated.key.name == "laptop"
    closed = await admin.CloseAccount(admin_pb2.CloseAccountRequest(account="ada"))
    assert closed.account.state == auth_pb2.ACCOUNT_STATE_CLOSED
    answer = await verify.VerifyKey(auth_pb2.VerifyKeyRequest(key_sha256=api_key.key_sha256(fresh)))
    assert answer.account_state == auth_pb2.ACCOUNT_STATE_CLOSED
    assert answer.key_state == auth_pb2.KEY_STATE_REVOKED
    records = (await admin.ListAudit(admin_pb2.ListAuditRequest(account="ada"))).records
    assert [record.action for record in records] == [
        "account_closed",
        "key_rotated",
        "key_issued",
        "key_issued",
        "account_created",
    ]
    assert {record.actor for record in records} == {"anonymous"}
    assert records[1].key_id == old.key_id
    (newest,) = (await admin.ListAudit(admin_pb2.ListAuditRequest(limit=1))).records
    assert newest == records[0]
    nobody = admin.ListAudit(admin_pb2.ListAuditRequest(account="nobody"))
    assert (await reason_of(nobody))[0] == grpc.StatusCode.NOT_FOUND


async def watched_until(call, sequence):
    """Read a watch until a sequence is confirmed; all events by then."""
    events = []
    async with asyncio.timeout(20):
        while True:
            message = await call.read()
            events += message.events.events
            if message.confirmed.sequence >= sequence:
                return events


async def test_watch(auth):
    """A watch tells of a revocation what it was of; another goes on from where one has ended."""
    verify, admin = auth
    await admin.CreateAccount(admin_pb2.CreateAccountRequest(name="ada"))
    key, issued = await issue(admin, "ada")
    request = auth_pb2.VerifyKeyRequest(key_sha256=api_key.key_sha256(key))
    seen = (await verify.VerifyKey(request)).sequence
    call = verify.WatchKeys(auth_pb2.WatchKeysRequest(after_sequence=seen))
    assert await watched_until(call, seen) == []
    await admin.RevokeKey(admin_pb2.RevokeKeyRequest(key_id=issued.key_id))
    (event,) = await watched_until(call, seen + 1)
    assert (event.sequence, event.key_id) == (seen + 1, issued.key_id)
    assert event.key_state == auth_pb2.KEY_STATE_REVOKED
    call.cancel()
    again = verify.WatchKeys(auth_pb2.WatchKeysRequest(after_sequence=seen))
    assert await watched_until(again, seen + 1) == [event]
    assert (await verify.VerifyKey(request)).sequence == seen + 1
    again.cancel()


async def test_drain_ends_watches(database):
    """A service that is stopping sends its watchers elsewhere instead of waiting for them."""
    service = AuthService(settings(database))
    ports = await service.start()
    channel = rpc.channel(f"127.0.0.1:{ports['grpc']}")
    call = auth_pb2_grpc.AuthServiceStub(channel).WatchKeys(auth_pb2.WatchKeysRequest())
    await watched_until(call, 0)
    draining = asyncio.create_task(service.drain())

    async for _ in call:
        pass
    assert await call.code() == grpc.StatusCode.OK
    await draining
    await channel.close()
    await service.stop()


async def test_actor(database, tmp_path):
    """The audit names the operator whose certificate made the change."""
    alice = Identity(Role.OPERATOR, "alice")
    ours, hers = provide(tmp_path, [Identity(Role.AUTH, "a"), alice], datetime.now(UTC))
    files = {f"tls_{name}": str(ours.folder / f"{name}.pem") for name in ("cert", "key", "ca")}
    service = AuthService(msgspec.structs.replace(settings(database), **files))
    ports = await service.start()
    tls = Tls.of_folder(hers.folder)
    channel = rpc.channel(f"127.0.0.1:{ports['grpc']}", Role.AUTH, tls)
    admin = admin_pb2_grpc.AdminServiceStub(channel)
    await admin.CreateAccount(admin_pb2.CreateAccountRequest(name="ada"))
    (record,) = (await admin.ListAudit(admin_pb2.ListAuditRequest())).records
    assert (record.actor, record.action) == ("operator/alice", "account_created")
    await channel.close()
    await service.stop()


async def test_another_pepper_ends_the_start(database, auth):
    """With a pepper other than that of the stored keys it does not start, and says what to do."""
    _, admin = auth
    await admin.CreateAccount(admin_pb2.CreateAccountRequest(name="ada"))
    other = AuthService(msgspec.structs.replace(settings(database), pepper="cd" * 32))
    await other.start()  # there are no keys yet
    await other.stop()
    await issue(admin, "ada")
    other = AuthService(msgspec.structs.replace(settings(database), pepper="cd" * 32))
    with pytest.raises(StartError, match="made with another pepper: set FASTRUN_AUTH_PEPPER"):
        await other.start()
    await other.stop()
    same = AuthService(settings(database))
    await same.start()
    await same.stop()


async def test_pepper_of_old_keys(stores):
    """Of keys that are older than the record, the first pepper that comes is taken for theirs."""
    await stores.accounts.create("ada")
    await stores.keys.issue("ada", new_key(api_key.generate(SystemRandom())))
    await stores.ask("delete from peppers")
    await pepper_record.check(stores.database, Peppers.of(["70" * 32]))
    with pytest.raises(PepperError):
        await pepper_record.check(stores.database, Peppers.of(["71" * 32]))


async def test_the_pepper_is_rotated(database, auth):
    """Keys of the former pepper stay valid beside new ones, for as long as it is named in its place."""
    _, admin = auth
    await admin.CreateAccount(admin_pb2.CreateAccountRequest(name="ada"))
    old, _ = await issue(admin, "ada")
    rotated = {"pepper": "cd" * 32, "previous_peppers": [PEPPER]}
    async with running(msgspec.structs.replace(settings(database), **rotated)) as (verify, admin):
        new, _ = await issue(admin, "ada")
        for key in (old, new):
            request = auth_pb2.VerifyKeyRequest(key_sha256=api_key.key_sha256(key))
            assert (await verify.VerifyKey(request)).key_state == auth_pb2.KEY_STATE_ACTIVE
    for peppers in (
        {"pepper": "cd" * 32},
        {"pepper": PEPPER},
        {"pepper": PEPPER, "previous_peppers": ["cd" * 32]},
    ):
        other = AuthService(msgspec.structs.replace(settings(database), **peppers))
        with pytest.raises(StartError, match="made with another pepper"):
            await other.start()
        await other.stop()


async def test_a_former_pepper_is_retired(database, auth):
    """It may go once no key needs it that has not ended, and keeps its place as a word."""
    _, admin = auth
    await admin.CreateAccount(admin_pb2.CreateAccountRequest(name="ada"))
    _, old = await issue(admin, "ada")
    rotated = {"pepper": "cd" * 32, "previous_peppers": [PEPPER]}
    async with running(msgspec.structs.replace(settings(database), **rotated)) as (_, admin):
        key, new = await issue(admin, "ada")
        listed = await admin.ListKeys(admin_pb2.ListKeysRequest())
        peppers = {each.key_id: each.pepper for each in listed.keys}
        assert peppers == {old.key_id: 1, new.key_id: 2}
    retired = msgspec.structs.replace(
        settings(database), pepper="cd" * 32, previous_peppers=["retired"]
    )
    other = AuthService(retired)
    with pytest.raises(StartError, match=r"needed by keys that have not ended \(1\)"):
        await other.start()
    await other.stop()
    async with running(msgspec.structs.replace(settings(database), **rotated)) as (_, admin):
        await admin.RevokeKey(admin_pb2.RevokeKeyRequest(key_id=old.key_id))
    async with running(retired) as (verify, _):
        request = auth_pb2.VerifyKeyRequest(key_sha256=api_key.key_sha256(key))
        assert (await verify.VerifyKey(request)).key_state == auth_pb2.KEY_STATE_ACTIVE
