"""Accounts, keys, limits and audit records as they travel."""

from auth_service.accounts import Account, AccountState, Identity, Key, KeyState
from auth_service.audit import Record
from auth_service.key_events import KeyEvent, Update
from auth_service.limits import Limits, as_dict
from fastrun.v1 import admin_pb2, auth_pb2

ACCOUNT_STATES = {
    AccountState.PENDING: auth_pb2.ACCOUNT_STATE_PENDING,
    AccountState.APPROVED: auth_pb2.ACCOUNT_STATE_APPROVED,
    AccountState.SUSPENDED: auth_pb2.ACCOUNT_STATE_SUSPENDED,
    AccountState.CLOSED: auth_pb2.ACCOUNT_STATE_CLOSED,
}
KEY_STATES = {
    KeyState.ACTIVE: auth_pb2.KEY_STATE_ACTIVE,
    KeyState.REVOKED: auth_pb2.KEY_STATE_REVOKED,
}


def limits_message(limits: Limits) -> auth_pb2.Limits:
    """Limits; what is None is absent."""
    return auth_pb2.Limits(**as_dict(limits))


def limits_of(message: auth_pb2.Limits) -> Limits:
    """Read limits; what is absent is None."""
    return Limits(**{field.name: value for field, value in message.ListFields()})


def account_message(account: Account) -> admin_pb2.Account:
    """An account as operators see it."""
    return admin_pb2.Account(
        account_id=account.account_id,
        name=account.name,
        state=ACCOUNT_STATES[account.state],
        created_at=account.created_at,
        limits=limits_message(account.limits),
    )


def key_message(key: Key) -> admin_pb2.Key:
    """A key as operators see it."""
    return admin_pb2.Key(
        key_id=key.key_id,
        account_id=key.account_id,
        name=key.name,
        prefix=key.prefix,
        state=KEY_STATES[key.state],
        created_at=key.created_at,
        expires_at=key.expires_at,
        models=key.models,
        limits=limits_message(key.limits),
        last_used_at=key.last_used_at,
        pepper=key.pepper,
    )


def audit_message(record: Record) -> admin_pb2.AuditRecord:
    """A record of the audit."""
    return admin_pb2.AuditRecord(
        number=record.number,
        at=record.at,
        actor=record.actor,
        action=record.action,
        account_id=record.account_id,
        key_id=record.key_id,
        change_json=record.change_json,
    )


def identity_message(identity: Identity) -> auth_pb2.VerifyKeyResponse:
    """Whom a key speaks for, as edges are told."""
    return auth_pb2.VerifyKeyResponse(
        account_id=identity.account_id,
        key_id=identity.key_id,
        account_state=ACCOUNT_STATES[identity.account_state],
        key_state=KEY_STATES[identity.key_state],
        expires_at=identity.expires_at,
        cache_salt=identity.cache_salt,
        sequence=identity.sequence,
        models=identity.models,
        account_limits=limits_message(identity.account_limits),
        key_limits=limits_message(identity.key_limits),
        account_month_tokens=identity.account_month_tokens,
        key_month_tokens=identity.key_month_tokens,
    )


def update_messages(update: Update) -> list[auth_pb2.WatchKeysResponse]:
    """What a watching edge is told, in order."""
    messages = []
    if update.reset:
        reset = auth_pb2.Reset(sequence=update.confirmed)
        messages.append(auth_pb2.WatchKeysResponse(reset=reset))
    if update.events:
        events = auth_pb2.KeyEvents(events=[_event_message(event) for event in update.events])
        messages.append(auth_pb2.WatchKeysResponse(events=events))
    confirmed = auth_pb2.Confirmed(sequence=update.confirmed)
    return [*messages, auth_pb2.WatchKeysResponse(confirmed=confirmed)]


def _event_message(event: KeyEvent) -> auth_pb2.KeyEvent:
    return auth_pb2.KeyEvent(
        sequence=event.sequence,
        account_id=event.account_id,
        key_id=event.key_id or "",
        account_state=ACCOUNT_STATES[event.account_state],
        key_state=KEY_STATES[event.key_state]
        if event.key_state
        else auth_pb2.KEY_STATE_UNSPECIFIED,
    )
