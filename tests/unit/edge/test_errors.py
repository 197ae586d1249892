"""The table from reasons to what a client sees."""

import json

import pytest

from edge.errors import TYPES, Refusal, refusal_of, unknown_model
from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason

TABLE = [
    ("INVALID_REQUEST", 400, "invalid_request_error", "as told"),
    ("INVALID_KEY", 401, "authentication_error", "invalid or missing API key"),
    ("UNKNOWN_MODEL", 404, "invalid_request_error", "as told"),
    ("NOT_FOUND", 404, "invalid_request_error", "as told"),
    ("QUEUE_FULL", 429, "rate_limit_error", "all backends for this model are at capacity"),
    ("QUEUE_TIMEOUT", 429, "rate_limit_error", "all backends for this model are at capacity"),
    ("LIMIT_REACHED", 429, "rate_limit_error", "as told"),
    ("NO_SLOT", 429, "rate_limit_error", "all backends for this model are at capacity"),
    ("LEASE_REFUSED", 429, "rate_limit_error", "all backends for this model are at capacity"),
    ("DRAINING", 429, "rate_limit_error", "all backends for this model are at capacity"),
    ("ENGINE_FAILED", 502, "upstream_error", "all backends refused the request"),
    ("ENGINE_DIED", 502, "upstream_error", "all backends refused the request"),
    ("MOVED", 502, "upstream_error", "all backends refused the request"),
    ("NO_WORKER", 503, "unavailable", "no backend is available for this model"),
    ("UNAVAILABLE", 503, "unavailable", "as told"),
    ("ALREADY_EXISTS", 500, "upstream_error", "internal error, please report the x-request-id"),
    ("CONFLICT", 500, "upstream_error", "internal error, please report the x-request-id"),
    ("INTERNAL", 500, "upstream_error", "internal error, please report the x-request-id"),
    ("PERMISSION_DENIED", 500, "upstream_error", "internal error, please report the x-request-id"),
    ("UNSPECIFIED", 500, "upstream_error", "internal error, please report the x-request-id"),
]


@pytest.mark.parametrize(("reason", "status", "kind", "message"), TABLE)
def test_each_reason(reason, status, kind, message):
    """Each reason has one status, type and message."""
    refusal = refusal_of(ServiceError(ErrorReason.Value(f"ERROR_REASON_{reason}"), "as told"))
    assert json.loads(refusal.body()) == {
        "error": {"message": message, "type": kind, "code": status}
    }


def test_no_reason_is_missing():
    """A reason that is added to the proto has to be added to the table too."""
    assert {f"ERROR_REASON_{row[0]}" for row in TABLE} == set(ErrorReason.keys())


@pytest.mark.parametrize(
    ("retry_after_ms", "header"), [(None, "1"), (0, "1"), (1, "1"), (1000, "1"), (1001, "2")]
)
def test_retry_after(retry_after_ms, header):
    """Milliseconds are rounded up to whole seconds, at least one."""
    error = ServiceError(ErrorReason.ERROR_REASON_QUEUE_FULL, "full", retry_after_ms=retry_after_ms)
    assert refusal_of(error).all_headers() == {"Retry-After": header}


@pytest.mark.parametrize("status", sorted(TYPES))
def test_who_gets_retry_after(status):
    """Only those who may come back are told when."""
    headers = Refusal(status, "no").all_headers()
    assert ("Retry-After" in headers) == (status in (429, 500, 502, 503))


def test_no_retry_after_for_what_stays_wrong():
    """A time that came with a lasting refusal is not passed on."""
    error = ServiceError(ErrorReason.ERROR_REASON_INVALID_REQUEST, "never", retry_after_ms=1000)
    assert refusal_of(error).all_headers() == {}


def test_messages_are_short():
    """Whatever a client sent, its refusal has at most 1 KB of message."""
    assert len(json.loads(Refusal(400, "x" * 5000).body())["error"]["message"]) == 1000
    assert len(str(unknown_model("m" * 5000))) < 300
