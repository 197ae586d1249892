"""Which refusal a client sees for which cause: the one table from reasons to HTTP."""

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from fastrun.service.errors import ServiceError, reason_name
from fastrun.v1.error_pb2 import ErrorDetail, ErrorReason

MESSAGE_CHARACTERS = 1000

INVALID_KEY = "invalid or missing API key"
AT_CAPACITY = "all backends for this model are at capacity"
REFUSED = "all backends refused the request"
NO_BACKEND = "no backend is available for this model"
KEYS_UNCHECKED = "API keys cannot be checked right now"
USAGE_UNRECORDED = "usage cannot be recorded right now"
USAGE_UNKNOWN = "usage cannot be looked up right now"
NO_SCHEDULER = "no scheduler can be reached right now"
BROKEN_OFF = "the backend failed before the answer was complete"
TOO_LONG = "the request took longer than it may"
INTERNAL = "internal error, please report the x-request-id"

# Every status a client may see, and its type.
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    417: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "upstream_error",
    502: "upstream_error",
    503: "unavailable",
}
# Whoever gets one of these is told when to come back, at the soonest after so many seconds.
RETRY_AFTER_S = {429: 1, 500: 1, 502: 1, 503: 1}


class Refusal(Exception):  # noqa: N818 - what a client is told; not always our fault
    """What a client is told instead of an answer.

    Attributes:
        status: one of TYPES.
        message: one sentence that says what to do.
        retry_after_s: at least 1; None leaves it to RETRY_AFTER_S.
        headers: further headers, such as Allow.
        reason: a constant for logs, which must not hold the message: it may quote the client.
    """

    def __init__(
        self,
        status: int,
        message: str,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s
        self.headers = dict(headers or {})
        self.reason = reason or TYPES[status]

    def body(self) -> bytes:
        """The error envelope, also what an error event of a stream holds."""
        error = {
            "message": self.message[:MESSAGE_CHARACTERS],
            "type": TYPES[self.status],
            "code": self.status,
        }
        return orjson.dumps({"error": error})

    def all_headers(self) -> dict[str, str]:
        """Headers, with Retry-After where the status asks for it."""
        after = self.retry_after_s or RETRY_AFTER_S.get(self.status)
        if after is None:
            return self.headers
        return {"Retry-After": str(after), **self.headers}


@dataclass(frozen=True, slots=True)
class _Row:
    status: int
    message: str | None
    """None: the sentence that came with the reason."""


_ROWS: dict[int, _Row] = {
    ErrorReason.ERROR_REASON_INVALID_REQUEST: _Row(400, None),
    ErrorReason.ERROR_REASON_INVALID_KEY: _Row(401, INVALID_KEY),
    ErrorReason.ERROR_REASON_UNKNOWN_MODEL: _Row(404, None),
    ErrorReason.ERROR_REASON_NOT_FOUND: _Row(404, None),
    ErrorReason.ERROR_REASON_QUEUE_FULL: _Row(429, AT_CAPACITY),
    ErrorReason.ERROR_REASON_QUEUE_TIMEOUT: _Row(429, AT_CAPACITY),
    ErrorReason.ERROR_REASON_LIMIT_REACHED: _Row(429, None),
    ErrorReason.ERROR_REASON_NO_SLOT: _Row(429, AT_CAPACITY),
    ErrorReason.ERROR_REASON_LEASE_REFUSED: _Row(429, AT_CAPACITY),
    ErrorReason.ERROR_REASON_DRAINING: _Row(429, AT_CAPACITY),
    ErrorReason.ERROR_REASON_ENGINE_FAILED: _Row(502, REFUSED),
    ErrorReason.ERROR_REASON_ENGINE_DIED: _Row(502, REFUSED),
    ErrorReason.ERROR_REASON_MOVED: _Row(502, REFUSED),
    ErrorReason.ERROR_REASON_NO_WORKER: _Row(503, NO_BACKEND),
    ErrorReason.ERROR_REASON_UNAVAILABLE: _Row(503, None),
    ErrorReason.ERROR_REASON_ALREADY_EXISTS: _Row(500, INTERNAL),
    ErrorReason.ERROR_REASON_CONFLICT: _Row(500, INTERNAL),
    ErrorReason.ERROR_REASON_INTERNAL: _Row(500, INTERNAL),
    ErrorReason.ERROR_REASON_PERMISSION_DENIED: _Row(500, INTERNAL),
    ErrorReason.ERROR_REASON_UNSPECIFIED: _Row(500, INTERNAL),
}


def refusal_of(error: Exception) -> Refusal:
    """Say what a client is told of any failure: ours, another service's, or one nobody expected."""
    if isinstance(error, Refusal):
        return error
    if not isinstance(error, ServiceError):
        return Refusal(500, INTERNAL, reason="internal")
    detail = error.detail
    reason = detail.reason if detail.reason in _ROWS else ErrorReason.ERROR_REASON_INTERNAL
    row = _ROWS[reason]
    return Refusal(
        row.status,
        row.message or detail.message,
        _seconds(detail, row.status),
        reason=reason_name(reason),
    )


def unknown_model(model: str) -> Refusal:
    """No worker ever served this model."""
    return Refusal(404, f"model '{model[:200]}' does not exist")


def invalid(message: str) -> Refusal:
    """The request itself is wrong."""
    return Refusal(400, message)


def _seconds(detail: ErrorDetail, status: int) -> int | None:
    """Round up, so that nobody comes back too early; only where the status carries one."""
    if status not in RETRY_AFTER_S or not detail.HasField("retry_after_ms"):
        return None
    return max(1, -(-detail.retry_after_ms // 1000))
