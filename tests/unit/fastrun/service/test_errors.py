"""Failures on their way between services."""

import grpc

from fastrun.service import errors
from fastrun.v1.error_pb2 import ErrorReason


def test_every_reason_has_a_status():
    """No reason falls through the table."""
    reasons = set(ErrorReason.values()) - {ErrorReason.ERROR_REASON_UNSPECIFIED}
    assert reasons == set(errors.STATUS)


def test_messages_are_cut_to_a_kilobyte_of_whole_characters():
    """A long message is cut, never in the middle of a character."""
    error = errors.ServiceError(ErrorReason.ERROR_REASON_INTERNAL, "é" * 2000)
    assert len(error.detail.message.encode()) == 1024
    assert set(error.detail.message) == {"é"}


def test_a_failure_without_detail_is_read_by_its_status():
    """A dead peer has no trailer: UNAVAILABLE and DEADLINE_EXCEEDED mean it cannot be reached."""
    for code, reason in (
        (grpc.StatusCode.UNAVAILABLE, ErrorReason.ERROR_REASON_UNAVAILABLE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, ErrorReason.ERROR_REASON_UNAVAILABLE),
        (grpc.StatusCode.UNKNOWN, ErrorReason.ERROR_REASON_INTERNAL),
    ):
        failed = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())
        assert errors.ServiceError.of_rpc(failed).detail.reason == reason


def test_retry_time_survives_the_wire():
    """An absent retry time stays absent, and 0 stays 0."""
    for after in (None, 0, 1500):
        error = errors.ServiceError(ErrorReason.ERROR_REASON_NO_SLOT, "x", retry_after_ms=after)
        detail = errors.ServiceError.of(error.detail).detail
        assert (detail.retry_after_ms if detail.HasField("retry_after_ms") else None) == after


def test_a_reason_of_a_newer_peer_has_a_name():
    """During an upgrade a peer may know reasons that this process does not."""
    assert errors.reason_name(ErrorReason.ERROR_REASON_NO_SLOT) == "no_slot"
    assert errors.reason_name(9999) == "reason_9999"
