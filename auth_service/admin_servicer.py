"""AdminService over gRPC: what operators do to accounts and keys, and who did what."""

import grpc.aio
import structlog
from google.protobuf.message import Message

from auth_service.account_store import AccountStore
from auth_service.accounts import AccountState
from auth_service.audit import Audit
from auth_service.enrolment_servicer import Enrolment, required
from auth_service.key_store import KeyStore, NewKey
from auth_service.messages import (
    ACCOUNT_STATES,
    account_message,
    audit_message,
    key_message,
    limits_message,
    limits_of,
)
from auth_service.prices import Prices
from auth_service.refusals import told
from auth_service.usage_servicer import AdminUsageServicer
from auth_service.usage_store import UsageStore
from fastrun.service.errors import ServiceError
from fastrun.v1 import admin_pb2
from fastrun.v1.error_pb2 import ErrorReason

log = structlog.get_logger()

Context = grpc.aio.ServicerContext

LOGGED = 64  # characters of what came from outside
_STATES = {number: state for state, number in ACCOUNT_STATES.items()}


class AdminServicer(AdminUsageServicer):
    """Answers operators; see admin.proto for each call."""

    def __init__(
        self,
        accounts: AccountStore,
        keys: KeyStore,
        audit: Audit,
        usage: UsageStore,
        prices: Prices,
        *,
        enrolment: Enrolment | None,
    ) -> None:
        super().__init__(accounts, usage, prices)
        self._enrolment = enrolment
        self._keys = keys
        self._audit = audit

    async def CreateAccount(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.CreateAccountRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.CreateAccountResponse:
        """Make a pending account."""
        del context
        account = await told(self._accounts.create(request.name))
        log.info("account_created", account_id=account.account_id)
        return admin_pb2.CreateAccountResponse(account=account_message(account))

    async def ApproveAccount(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.ApproveAccountRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.ApproveAccountResponse:
        """Let an account call."""
        del context
        account = await told(self._accounts.approve(request.account))
        log.info("account_approved", account_id=account.account_id)
        return admin_pb2.ApproveAccountResponse(account=account_message(account))

    async def SuspendAccount(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.SuspendAccountRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.SuspendAccountResponse:
        """Stop an account from calling."""
        del context
        account = await told(self._accounts.suspend(request.account))
        log.info("account_suspended", account_id=account.account_id)
        return admin_pb2.SuspendAccountResponse(account=account_message(account))

    async def CloseAccount(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.CloseAccountRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.CloseAccountResponse:
        """End an account with all its keys."""
        del context
        account = await told(self._accounts.close(request.account))
        log.info("account_closed", account_id=account.account_id)
        return admin_pb2.CloseAccountResponse(account=account_message(account))

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
        accounts = await told(self._accounts.list(state))
        return admin_pb2.ListAccountsResponse(accounts=[account_message(each) for each in accounts])

    async def IssueKey(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.IssueKeyRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.IssueKeyResponse:
        """Register a key that the caller has made."""
        del context
        new = NewKey(
            key_sha256=request.key_sha256,
            prefix=request.prefix,
            name=request.name,
            expires_at=request.expires_at if request.HasField("expires_at") else None,
            models=tuple(request.models),
        )
        key = await told(self._keys.issue(request.account, new))
        log.info("key_issued", key_id=key.key_id, account_id=key.account_id)
        return admin_pb2.IssueKeyResponse(key=key_message(key))

    async def RevokeKey(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.RevokeKeyRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.RevokeKeyResponse:
        """End a key for good."""
        del context
        key = await told(self._keys.revoke(request.key_id))
        log.info("key_revoked", key_id=key.key_id, account_id=key.account_id)
        return admin_pb2.RevokeKeyResponse(key=key_message(key))

    async def RotateKey(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.RotateKeyRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.RotateKeyResponse:
        """Register a key in place of another."""
        del context
        new = NewKey(key_sha256=request.key_sha256, prefix=request.prefix)
        key = await told(self._keys.rotate(request.key_id, new, request.overlap_s))
        log.info("key_rotated", key_id=request.key_id[:LOGGED], new_key_id=key.key_id)
        return admin_pb2.RotateKeyResponse(key=key_message(key))

    async def ListKeys(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.ListKeysRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.ListKeysResponse:
        """List keys, newest first."""
        del context
        account_id = await self._account_id(request.account)
        keys = await told(self._keys.list(account_id))
        return admin_pb2.ListKeysResponse(keys=[key_message(each) for each in keys])

    async def SetLimits(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.SetLimitsRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.SetLimitsResponse:
        """Replace the limits of an account or a key."""
        del context
        new = limits_of(request.limits)
        match request.WhichOneof("subject"):
            case "account":
                await told(self._accounts.set_limits(request.account, new))
            case "key_id":
                await told(self._keys.set_limits(request.key_id, new))
            case _:
                raise ServiceError(
                    ErrorReason.ERROR_REASON_INVALID_REQUEST, "name an account or a key"
                )
        return admin_pb2.SetLimitsResponse(limits=limits_message(new))

    async def CreateWorkerToken(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.CreateWorkerTokenRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.CreateWorkerTokenResponse:
        """Register a token by which a machine may join."""
        del context
        enrolment = required(self._enrolment)
        made = enrolment.create_token(request.token_sha256, request.worker_id)
        expires_at, ca_sha256 = await told(made)
        log.info("worker_token_created", worker_id=request.worker_id or None)
        return admin_pb2.CreateWorkerTokenResponse(
            expires_at=expires_at, ca_sha256=ca_sha256, port=enrolment.port
        )

    async def ListAudit(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.ListAuditRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.ListAuditResponse:
        """List who changed what, newest first."""
        del context
        account_id = await self._account_id(request.account)
        records = await told(self._audit.list(account_id, request.limit))
        return admin_pb2.ListAuditResponse(records=[audit_message(each) for each in records])

    async def _account_id(self, account: str) -> str | None:
        """The id of an account that may be named; None: all accounts are meant."""
        return (await told(self._accounts.find(account))).account_id if account else None
