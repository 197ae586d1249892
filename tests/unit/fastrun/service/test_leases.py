"""The signed lease."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrun.service import leases
from fastrun.v1.scheduler_pb2 import LeaseClaims

KEY = b"k" * 32
CLAIMS = LeaseClaims(lease_id="l", request_id="r", account_id="a", instance_id="i", term=7)


def test_a_signed_lease_verifies():
    """What was signed is what is read."""
    assert leases.verify(leases.sign(CLAIMS, KEY), KEY) == CLAIMS


def test_another_key_is_refused():
    """A lease of another scheduler's key does not verify, and can still be read."""
    blob = leases.sign(CLAIMS, b"x" * 32)
    with pytest.raises(leases.LeaseError):
        leases.verify(blob, KEY)
    assert leases.read(blob) == CLAIMS


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_any_changed_byte_is_refused(position, change):
    """No byte of a lease can be changed."""
    blob = bytearray(leases.sign(CLAIMS, KEY))
    blob[position % len(blob)] ^= change
    with pytest.raises(leases.LeaseError):
        leases.verify(bytes(blob), KEY)


@given(st.binary(max_size=80))
def test_junk_is_refused(blob):
    """Bytes that nobody signed are refused without any other exception."""
    with pytest.raises(leases.LeaseError):
        leases.verify(blob, KEY)
