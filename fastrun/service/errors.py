"""How a failure travels between services: a gRPC status and one ErrorDetail trailer."""

from __future__ import annotations  # grpc's classes are generic in their stubs only

from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from fastrun.v1.error_pb2 import ErrorDetail, ErrorReason

TRAILER = "fastrun-error-bin"
MESSAGE_BYTES = 1024

STATUS: dict[int, grpc.StatusCode] = {
    ErrorReason.ERROR_REASON_INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.ERROR_REASON_INVALID_KEY: grpc.StatusCode.UNAUTHENTICATED,
    ErrorReason.ERROR_REASON_UNKNOWN_MODEL: grpc.StatusCode.NOT_FOUND,
    ErrorReason.ERROR_REASON_QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorReason.ERROR_REASON_QUEUE_TIMEOUT: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorReason.ERROR_REASON_NO_WORKER: grpc.StatusCode.UNAVAILABLE,
    ErrorReason.ERROR_REASON_NO_SLOT: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorReason.ERROR_REASON_LEASE_REFUSED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorReason.ERROR_REASON_DRAINING: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorReason.ERROR_REASON_ENGINE_FAILED: grpc.StatusCode.INTERNAL,
    ErrorReason.ERROR_REASON_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorReason.ERROR_REASON_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorReason.ERROR_REASON_CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorReason.ERROR_REASON_INTERNAL: grpc.StatusCode.INTERNAL,
    ErrorReason.ERROR_REASON_ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    ErrorReason.ERROR_REASON_PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorReason.ERROR_REASON_LIMIT_REACHED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorReason.ERROR_REASON_MOVED: grpc.StatusCode.UNAVAILABLE,
    ErrorReason.ERROR_REASON_ENGINE_DIED: grpc.StatusCode.INTERNAL,
}


def reason_name(reason: ErrorReason.ValueType) -> str:
    """Return the name of a reason for logs and metrics, also of one that a newer peer has."""
    if reason not in ErrorReason.values():
        return f"reason_{reason}"
    return ErrorReason.Name(reason).removeprefix("ERROR_REASON_").lower()


class ServiceError(Exception):
    """A refusal or failure with a reason that other services understand."""

    def __init__(
        self, reason: ErrorReason.ValueType, message: str, *, retry_after_ms: int | None = None
    ) -> None:
        super().__init__(message)
        self.detail = ErrorDetail(
            reason=reason, message=_short(message), retry_after_ms=retry_after_ms
        )

    @classmethod
    def of(cls, detail: ErrorDetail) -> ServiceError:
        """Turn a detail that came over the wire into an exception."""
        after = detail.retry_after_ms if detail.HasField("retry_after_ms") else None
        return cls(detail.reason, detail.message, retry_after_ms=after)

    @classmethod
    def of_rpc(cls, error: grpc.RpcError) -> ServiceError:
        """Read the ErrorDetail of a failed call; without one the status alone has to speak."""
        trailers: Any = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
        for key, value in trailers or ():
            if key == TRAILER and isinstance(value, bytes):
                try:
                    return cls.of(ErrorDetail.FromString(value))
                except DecodeError:
                    break
        code = error.code() if hasattr(error, "code") else None
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return cls(ErrorReason.ERROR_REASON_UNAVAILABLE, "the service cannot be reached")
        return cls(ErrorReason.ERROR_REASON_INTERNAL, f"the call failed: {code}")


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: ServiceError) -> NoReturn:
    """End a call with the status and trailer of an error."""
    await context.abort(
        STATUS.get(error.detail.reason, grpc.StatusCode.INTERNAL),
        error.detail.message,
        ((TRAILER, error.detail.SerializeToString()),),
    )
    raise AssertionError("context.abort returns never")


def _short(message: str) -> str:
    """Cut to MESSAGE_BYTES of UTF-8, whole characters only."""
    encoded = message.encode("utf-8", "replace")
    return encoded[:MESSAGE_BYTES].decode("utf-8", "ignore")
