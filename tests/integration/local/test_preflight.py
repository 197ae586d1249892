"""What is seen of a machine before anything is started on it."""

import pytest

from fastrun.local import preflight
from fastrun.local.errors import LocalError


def test_a_machine_without_a_loopback_is_told(monkeypatch):
    """Its parts could not reach each other, so none is started."""
    preflight.check_loopback()
    monkeypatch.setattr(preflight, "LOOPBACK", "192.0.2.1")  # of nobody, by RFC 5737
    with pytest.raises(
        LocalError, match=r"cannot reach each other at 192\.0\.2\.1 \(.*ip link set"
    ):
        preflight.check_loopback()
