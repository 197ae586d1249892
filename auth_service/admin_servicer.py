"""AdminService over gRPC: what operators do to accounts and keys."""

from collections.abc import Awaitable
from typing import TypeVar

import grpc.aio
import structlog
from google.protobuf.message import Message

from auth_service.accounts import Account, AccountState, Key
from auth_service.errors import (
    AlreadyExistsError,
    AuthServiceError,
    InvalidFieldError,
    NotFoundError,
    StateError,
    StoreUnavailableError,
)
from auth_service.servicer import ACCOUNT_STATES, KEY_STATES
from auth_service.store import Store
from fastrun.service.errors import ServiceError
from fastrun.v1 import admin_pb2, admin_pb2_grpc
from fastrun.v1.error_pb2 import ErrorReason

log = structlog.get_logger()

Context = grpc.aio.ServicerContext
T = TypeVar("T")

_REASONS = {
    AlreadyExistsError: ErrorReason.ERROR_REASON_ALREADY_EXISTS,
    InvalidFieldError: ErrorReason.ERROR_REASON_INVALID_REQUEST,
    NotFoundError: ErrorReason.ERROR_REASON_NOT_FOUND,
    StateError: ErrorReason.ERROR_REASON_CONFLICT,
    StoreUnavailableError: ErrorReason.ERROR_REASON_UNAVAILABLE,
}
_STATES = {number: state for state, number in ACCOUNT_STATES.items()}


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Answers operators; see admin.proto for each call."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def CreateAccount(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.CreateAccountRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.CreateAccountResponse:
        """Make a pending account."""
        del context
        account = await _told(self._store.create_account(request.name))
        log.info("account_created", account_id=account.account_id)
        return admin_pb2.CreateAccountResponse(account=_account(account))

    async def ApproveAccount(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.ApproveAccountRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.ApproveAccountResponse:
        """Let an account call."""
        del context
        account = await _told(self._store.approve(request.account))
        log.info("account_approved", account_id=account.account_id)
        return admin_pb2.ApproveAccountResponse(account=_account(account))

    async def SuspendAccount(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.SuspendAccountRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.SuspendAccountResponse:
        """Stop an account from calling."""
        del context
        account = await _told(self._store.suspend(request.account))
        log.info("account_suspended", account_id=account.account_id)
        return admin_pb2.SuspendAccountResponse(account=_account(account))

    async def ListAccounts(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.ListAccountsRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.ListAccountsResponse:
        """List accounts, newest first."""
        del context
        state: AccountState | None = None
        if request.HasField("state"):
            state = _STATES.get(request.state)
            if state is None:
                raise ServiceError(
                    ErrorReason.ERROR_REASON_INVALID_REQUEST, "state is not one of an account"
                )
        accounts = await _told(self._store.list_accounts(state))
        return admin_pb2.ListAccountsResponse(accounts=[_account(each) for each in accounts])

    async def IssueKey(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.IssueKeyRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.IssueKeyResponse:
        """Register a key that the caller has made."""
        del context
        key = await _told(
            self._store.issue_key(
                request.account,
                name=request.name,
                key_sha256=request.key_sha256,
                prefix=request.prefix,
                expires_at=request.expires_at if request.HasField("expires_at") else None,
            )
        )
        log.info("key_issued", key_id=key.key_id, account_id=key.account_id)
        return admin_pb2.IssueKeyResponse(key=_key(key))

    async def RevokeKey(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.RevokeKeyRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.RevokeKeyResponse:
        """End a key for good."""
        del context
        key = await _told(self._store.revoke_key(request.key_id))
        log.info("key_revoked", key_id=key.key_id, account_id=key.account_id)
        return admin_pb2.RevokeKeyResponse(key=_key(key))

    async def ListKeys(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.ListKeysRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.ListKeysResponse:
        """List keys, newest first."""
        del context
        keys = await _told(self._store.list_keys(request.account))
        return admin_pb2.ListKeysResponse(keys=[_key(each) for each in keys])


async def _told(call: Awaitable[T]) -> T:
    """Await the store, and turn what it refuses into what travels.

    Raises:
        ServiceError: with the reason that fits.
    """
    try:
        return await call
    except AuthServiceError as error:
        reason = _REASONS.get(type(error), ErrorReason.ERROR_REASON_INTERNAL)
        raise ServiceError(reason, str(error)) from error


def _account(account: Account) -> admin_pb2.Account:
    return admin_pb2.Account(
        account_id=account.account_id,
        name=account.name,
        state=ACCOUNT_STATES[account.state],
        created_at=account.created_at,
    )


def _key(key: Key) -> admin_pb2.Key:
    return admin_pb2.Key(
        key_id=key.key_id,
        account_id=key.account_id,
        name=key.name,
        prefix=key.prefix,
        state=KEY_STATES[key.state],
        created_at=key.created_at,
        expires_at=key.expires_at,
    )
