from auth_service import messages
from auth_service.accounts import AccountState, KeyState
from auth_service.key_events import KeyEvent, Update
from auth_service.limits import NO_LIMITS, Limits
from fastrun.v1 import auth_pb2

OF_KEY = KeyEvent(4, "acct_x", "key_y", AccountState.APPROVED, KeyState.REVOKED)
OF_ACCOUNT = KeyEvent(5, "acct_x", None, AccountState.CLOSED, None)


def test_states():
    """Every state has a number of its own."""
    assert set(messages.ACCOUNT_STATES) == set(AccountState)
    assert set(messages.KEY_STATES) == set(KeyState)
    assert 0 not in {*messages.ACCOUNT_STATES.values(), *messages.KEY_STATES.values()}


def test_limits():
    """Limits travel with what is absent still absent, and 0 still 0."""
    for limits in (NO_LIMITS, Limits(3, None, 0, 10**15)):
        assert messages.limits_of(messages.limits_message(limits)) == limits
    assert not messages.limits_message(NO_LIMITS).ListFields()


def test_update():
    """Events come before the sequence that confirms them."""
    events, confirmed = messages.update_messages(Update([OF_KEY, OF_ACCOUNT], 5))
    of_key, of_account = events.events.events
    assert (of_key.sequence, of_key.account_id, of_key.key_id) == (4, "acct_x", "key_y")
    assert of_key.account_state == auth_pb2.ACCOUNT_STATE_APPROVED
    assert of_key.key_state == auth_pb2.KEY_STATE_REVOKED
    assert (of_account.key_id, of_account.key_state) == ("", auth_pb2.KEY_STATE_UNSPECIFIED)
    assert of_account.account_state == auth_pb2.ACCOUNT_STATE_CLOSED
    assert confirmed.confirmed.sequence == 5


def test_nothing_new():
    """Without events there is a confirmation alone."""
    (confirmed,) = messages.update_messages(Update([], 7))
    assert confirmed.confirmed.sequence == 7


def test_reset():
    """A reset says from which sequence events follow."""
    reset, confirmed = messages.update_messages(Update([], 7, reset=True))
    assert (reset.reset.sequence, confirmed.confirmed.sequence) == (7, 7)
