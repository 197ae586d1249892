"""AuthService over gRPC: a key's SHA-256 in, whom it speaks for out."""

import grpc.aio
from google.protobuf.message import Message

from auth_service.accounts import AccountState, Identity, KeyState
from auth_service.errors import StoreUnavailableError
from auth_service.keys import SHA256_LENGTH
from auth_service.metrics import Metrics
from auth_service.store import Store
from fastrun.service.errors import ServiceError
from fastrun.v1 import auth_pb2, auth_pb2_grpc
from fastrun.v1.auth_pb2 import VerifyKeyRequest, VerifyKeyResponse
from fastrun.v1.error_pb2 import ErrorReason

Context = grpc.aio.ServicerContext

ACCOUNT_STATES = {
    AccountState.PENDING: auth_pb2.ACCOUNT_STATE_PENDING,
    AccountState.APPROVED: auth_pb2.ACCOUNT_STATE_APPROVED,
    AccountState.SUSPENDED: auth_pb2.ACCOUNT_STATE_SUSPENDED,
}
KEY_STATES = {
    KeyState.ACTIVE: auth_pb2.KEY_STATE_ACTIVE,
    KeyState.REVOKED: auth_pb2.KEY_STATE_REVOKED,
}


class AuthServicer(auth_pb2_grpc.AuthServiceServicer):
    """Answers edges."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics

    async def VerifyKey(  # noqa: N802 - gRPC's name
        self, request: VerifyKeyRequest, context: "Context[Message, Message]"
    ) -> VerifyKeyResponse:
        """See auth.proto."""
        del context
        if len(request.key_sha256) != SHA256_LENGTH:
            raise ServiceError(
                ErrorReason.ERROR_REASON_INVALID_REQUEST,
                f"key_sha256 must have {SHA256_LENGTH} bytes",
            )
        with self._metrics.verify_seconds.time():
            identity = await self._verify(request.key_sha256)
        if identity is None:
            self._metrics.verified("unknown")
            raise ServiceError(ErrorReason.ERROR_REASON_NOT_FOUND, "no such key")
        self._metrics.verified("known")
        return VerifyKeyResponse(
            account_id=identity.account_id,
            key_id=identity.key_id,
            account_state=ACCOUNT_STATES[identity.account_state],
            key_state=KEY_STATES[identity.key_state],
            expires_at=identity.expires_at,
            cache_salt=identity.cache_salt,
        )

    async def _verify(self, key_sha256: bytes) -> Identity | None:
        try:
            return await self._store.verify(key_sha256)
        except StoreUnavailableError as error:
            self._metrics.verified("unavailable")
            raise ServiceError(
                ErrorReason.ERROR_REASON_UNAVAILABLE,
                "API keys cannot be checked right now",
                retry_after_ms=1000,
            ) from error
