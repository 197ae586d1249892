import time

import pytest
from typer.testing import CliRunner

from fastrun.cli import key
from fastrun.cli.app import make_app
from fastrun.v1 import admin_pb2
from fastrun.v1.auth_pb2 import KeyState


@pytest.mark.parametrize("days", ["0", "0.5", "-1"])
def test_days(days):
    """A key that would be expired as soon as it is made is a wrong call."""
    result = CliRunner().invoke(make_app("key"), ["key", "issue", "ada", "--days", days])

    assert result.exit_code == 2
    assert "Invalid value for '--days'" in result.stderr


@pytest.fixture
def listed(monkeypatch):
    """List one key."""

    def listed(**fields):
        answer = admin_pb2.ListKeysResponse(keys=[admin_pb2.Key(key_id="k1", **fields)])
        monkeypatch.setattr(key, "ask", lambda _address, _talk: answer)
        arguments = ["key", "list", "--auth", "127.0.0.1:1"]
        return CliRunner().invoke(make_app("key"), arguments).stdout.splitlines()[1].split()

    return listed


@pytest.mark.parametrize(
    ("state", "ends_in_s", "shown"),
    [
        (KeyState.KEY_STATE_ACTIVE, None, "active"),
        (KeyState.KEY_STATE_ACTIVE, 3600, "active"),
        (KeyState.KEY_STATE_ACTIVE, -1, "expired"),
        (KeyState.KEY_STATE_REVOKED, -1, "revoked"),
    ],
)
def test_state(listed, state, ends_in_s, shown):
    """A key that has ended by itself is shown as expired, one that was revoked as revoked."""
    expires_at = None if ends_in_s is None else time.time() + ends_in_s

    assert shown in listed(state=state, expires_at=expires_at)
