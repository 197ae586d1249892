"""The auth service over gRPC, with a real Postgres behind it."""

import hashlib
from random import SystemRandom

import grpc
import pytest

from auth_service.__main__ import AuthService
from auth_service.config import Config
from fastrun.service import api_key, rpc
from fastrun.service.errors import ServiceError
from fastrun.service.lifecycle import StartError
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


@pytest.fixture
async def auth(database):
    """Stubs of a running service: (AuthService, AdminService)."""
    service = AuthService(settings(database))
    ports = await service.start()
    channel = rpc.channel(f"127.0.0.1:{ports['grpc']}")
    yield auth_pb2_grpc.AuthServiceStub(channel), admin_pb2_grpc.AdminServiceStub(channel)
    await channel.close()
    await service.stop()


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
