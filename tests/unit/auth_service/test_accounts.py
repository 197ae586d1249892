from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth_service import accounts
from auth_service.accounts import AccountState, Change
from auth_service.errors import InvalidFieldError, StateError

PENDING, APPROVED, SUSPENDED, CLOSED = AccountState


@pytest.mark.parametrize(
    ("state", "change", "after"),
    [
        (PENDING, Change.APPROVE, APPROVED),
        (APPROVED, Change.APPROVE, APPROVED),
        (SUSPENDED, Change.APPROVE, APPROVED),
        (APPROVED, Change.SUSPEND, SUSPENDED),
        (SUSPENDED, Change.SUSPEND, SUSPENDED),
        *[(state, Change.CLOSE, CLOSED) for state in AccountState],
    ],
)
def test_changes(state, change, after):
    """Approving lets an account call, suspending stops it, closing ends it; repeats change nothing."""
    assert after == accounts.changed(state, change)


def test_pending_cannot_be_suspended():
    """A pending account cannot call anyway, so suspending it is refused."""
    with pytest.raises(StateError, match="cannot suspend an account that is pending"):
        accounts.changed(PENDING, Change.SUSPEND)


@pytest.mark.parametrize("change", [Change.APPROVE, Change.SUSPEND])
def test_closed_is_for_good(change):
    """A closed account stays closed."""
    with pytest.raises(StateError, match="an account that is closed"):
        accounts.changed(CLOSED, change)


def test_models():
    """The models of a key are kept in their order, each once."""
    assert accounts.key_models(["b", "a", "b"]) == ("b", "a")
    assert accounts.key_models([]) == ()


@pytest.mark.parametrize("models", [[""], ["x" * 201], ["a\nb"], [str(n) for n in range(101)]])
def test_bad_models(models):
    """Names that no model has, and too many, are refused."""
    with pytest.raises(InvalidFieldError, match="model"):
        accounts.key_models(models)


def test_names():
    """Names are trimmed and composed, so that equal-looking ones are equal."""
    assert accounts.account_name("  Zoe\u0308 ") == "Zoë"
    assert accounts.account_name("x" * 100) == "x" * 100
    assert accounts.key_name("") == ""


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, "a\nb", "a\0b", "\u202e", "acct_x"])
def test_bad_account_names(name):
    """A name that is empty, long, not printable or like an id is refused."""
    with pytest.raises(InvalidFieldError, match="an account's name must"):
        accounts.account_name(name)


@given(st.text())
def test_stored_names_stay(name):
    """A name as it is stored is a name again."""
    try:
        stored = accounts.account_name(name)
    except InvalidFieldError:
        return
    assert stored == accounts.account_name(stored)


@pytest.mark.parametrize("prefix", ["", "fr_abcd", "fr_abcdef", "fr_abcd\n", "fr_abcdé"])
def test_bad_prefixes(prefix):
    """Only eight printable characters are a prefix; a whole key is never taken for one."""
    with pytest.raises(InvalidFieldError, match="first 8 characters"):
        accounts.key_prefix(prefix)


@pytest.mark.parametrize("expires_at", [float("nan"), float("inf"), -1.0, 0.0, 1e12])
def test_bad_expiry(expires_at):
    """What is no time that Postgres can store is refused."""
    with pytest.raises(InvalidFieldError, match="expires_at"):
        accounts.key_expiry(expires_at)


def test_expiry():
    """A key may end at a time, or never."""
    assert accounts.key_expiry(2e9) == 2e9
    assert accounts.key_expiry(None) is None


def test_ids():
    """Ids say what they are of, and no account can be named like one."""
    random = Random(1)
    account_id = accounts.new_account_id(random)
    assert account_id.startswith("acct_")
    assert accounts.new_key_id(random).startswith("key_")
    with pytest.raises(InvalidFieldError):
        accounts.account_name(account_id)


def test_salt_is_not_shown():
    """An account's cache salt does not show in logs."""
    identity = accounts.Identity("a", "k", APPROVED, accounts.KeyState.ACTIVE, None, "salty")
    assert "salty" not in repr(identity)
