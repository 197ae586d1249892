import json
import time
from random import Random

import pytest
from typer.testing import CliRunner

from fastrun.cli import key
from fastrun.cli.app import make_app
from fastrun.service import api_key
from fastrun.v1 import admin_pb2
from fastrun.v1.auth_pb2 import KeyState, Limits


@pytest.mark.parametrize("when", ["0", "0d", "soon", "-1d", "2020-01-01", "1970-01-01T00:00:00Z"])
def test_expires(when):
    """A key that would be expired as soon as it is made is a wrong call."""
    result = CliRunner().invoke(make_app("key"), ["key", "issue", "ada", "--expires", when])

    assert result.exit_code == 2
    assert "Invalid value for --expires" in result.stderr


@pytest.mark.parametrize("overlap", ["1", "91d", "-1h"])
def test_overlap(overlap):
    """How long an old key works on is a duration of at most 90 days."""
    result = CliRunner().invoke(make_app("key"), ["key", "rotate", "key_1", "--overlap", overlap])

    assert result.exit_code == 2
    assert "Invalid value for --overlap" in result.stderr


@pytest.mark.parametrize("command", ["rotate", "revoke", "limits"])
def test_keys_stay_here(monkeypatch, command):
    """Whoever gives the key itself in place of its id is told so, and nothing is sent."""
    monkeypatch.setattr(key, "ask", lambda *_: pytest.fail("something was sent"))
    given = api_key.generate(Random(1))

    result = CliRunner().invoke(make_app("key"), ["key", command, given])

    assert str(result.exception) == "give the key's id, key_..., as `fastrun key list` shows it"


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


def test_use(listed):
    """A list of keys says what each may use, and when it was last used."""
    shown = listed(models=["a", "b"], limits=Limits(requests_per_minute=5), last_used_at=60)

    assert shown[6:] == [
        "1970-01-01T00:01:00+00:00",
        "-",
        "a,",
        "b",
        "5",
        "requests",
        "per",
        "minute",
    ]


def test_pepper(monkeypatch):
    """What still needs a pepper has not ended, and was made with it."""
    active, revoked = KeyState.KEY_STATE_ACTIVE, KeyState.KEY_STATE_REVOKED
    keys = [
        admin_pb2.Key(key_id="old", state=active, pepper=1),
        admin_pb2.Key(key_id="revoked", state=revoked, pepper=1),
        admin_pb2.Key(key_id="expired", state=active, pepper=1, expires_at=time.time() - 1),
        admin_pb2.Key(key_id="new", state=active, pepper=2),
    ]
    monkeypatch.setattr(key, "ask", lambda *_: admin_pb2.ListKeysResponse(keys=keys))
    arguments = ["key", "list", "--auth", "127.0.0.1:1", "--pepper", "1", "--json"]

    (shown,) = json.loads(CliRunner().invoke(make_app("key"), arguments).stdout)

    assert (shown["id"], shown["pepper"]) == ("old", 1)
