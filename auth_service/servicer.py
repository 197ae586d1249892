"""AuthService over gRPC: whom a key speaks for, and what changes about keys."""

from collections.abc import AsyncIterator

import grpc.aio
import structlog
from google.protobuf.message import Message

from auth_service.accounts import Identity
from auth_service.enrolment_servicer import Enrolment, RenewalServicer
from auth_service.errors import StoreUnavailableError
from auth_service.key_feed import KeyFeed
from auth_service.key_lookup import KeyLookup
from auth_service.keys import SHA256_LENGTH
from auth_service.messages import identity_message, update_messages
from auth_service.metrics import Metrics
from auth_service.usage_servicer import UsageServicer
from auth_service.usage_store import UsageStore
from fastrun.service.errors import ServiceError
from fastrun.v1.auth_pb2 import (
    VerifyKeyRequest,
    VerifyKeyResponse,
    WatchKeysRequest,
    WatchKeysResponse,
)
from fastrun.v1.error_pb2 import ErrorReason

log = structlog.get_logger()

Context = grpc.aio.ServicerContext


class AuthServicer(UsageServicer, RenewalServicer):
    """Answers edges, and workers that have joined."""

    def __init__(
        self,
        lookup: KeyLookup,
        feed: KeyFeed,
        usage: UsageStore,
        metrics: Metrics,
        *,
        enrolment: Enrolment | None,
    ) -> None:
        UsageServicer.__init__(self, usage, metrics)
        RenewalServicer.__init__(self, enrolment)
        self._lookup = lookup
        self._feed = feed

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
        # With the id of the request that asks: the interceptor has bound it.
        log.debug("key_verified", account_id=identity.account_id, key_id=identity.key_id)
        return identity_message(identity)

    async def WatchKeys(  # noqa: N802 - gRPC's name
        self, request: WatchKeysRequest, context: "Context[Message, Message]"
    ) -> AsyncIterator[WatchKeysResponse]:
        """See auth.proto."""
        del context
        with self._metrics.watches.track_inprogress():
            try:
                async for update in self._feed.watch(request.after_sequence):
                    for message in update_messages(update):
                        yield message
            except StoreUnavailableError as error:
                raise ServiceError(
                    ErrorReason.ERROR_REASON_UNAVAILABLE,
                    "key events cannot be read right now",
                ) from error

    async def _verify(self, key_sha256: bytes) -> Identity | None:
        try:
            return await self._lookup.verify(key_sha256)
        except StoreUnavailableError as error:
            self._metrics.verified("unavailable")
            raise ServiceError(
                ErrorReason.ERROR_REASON_UNAVAILABLE,
                "API keys cannot be checked right now",
                retry_after_ms=1000,
            ) from error
