"""The signed lease: what the scheduler grants, the edge carries and the worker checks."""

import hmac

from google.protobuf.message import DecodeError

from fastrun.v1.scheduler_pb2 import LeaseClaims

MAC_BYTES = 32
KEY_BYTES = 32


class LeaseError(Exception):
    """The blob is not a lease, or not one signed with this key."""


def sign(claims: LeaseClaims, key: bytes) -> bytes:
    """Return the opaque blob: the claims, then their HMAC-SHA-256 (RFC 2104)."""
    body = claims.SerializeToString()
    return body + hmac.digest(key, body, "sha256")


def read(blob: bytes) -> LeaseClaims:
    """Read the claims of a blob whose holder is trusted, without the key.

    Raises:
        LeaseError: it is not a lease.
    """
    if len(blob) <= MAC_BYTES:
        raise LeaseError("a lease is longer than its signature")
    try:
        return LeaseClaims.FromString(blob[:-MAC_BYTES])
    except DecodeError as error:
        raise LeaseError("this is not a lease") from error


def verify(blob: bytes, key: bytes) -> LeaseClaims:
    """Read the claims of a blob that an edge presents.

    Raises:
        LeaseError: it is not a lease, or was signed with another key.
    """
    claims = read(blob)
    mac = hmac.digest(key, blob[:-MAC_BYTES], "sha256")
    if not hmac.compare_digest(mac, blob[-MAC_BYTES:]):
        raise LeaseError("the lease's signature does not fit")
    return claims
