"""What accounts and keys are, which values they may have, and how an account's state moves."""

import math
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from auth_service.errors import InvalidFieldError, StateError
from auth_service.limits import NO_LIMITS, Limits
from fastrun.service.api_key import PREFIX_LENGTH, random_text

NAME_LENGTH = 100
MODEL_LENGTH = 200
MOST_MODELS = 100
ACCOUNT_ID_START = "acct_"
KEY_ID_START = "key_"

_ID_RANDOM_LENGTH = 16
_SALT_LENGTH = 22
_YEAR_9999_S = 253_370_764_800.0


class AccountState(StrEnum):
    """Whether an account may call."""

    PENDING = "pending"
    APPROVED = "approved"
    SUSPENDED = "suspended"
    CLOSED = "closed"


class Change(StrEnum):
    """What an operator does to an account's state."""

    APPROVE = "approve"
    SUSPEND = "suspend"
    CLOSE = "close"


class KeyState(StrEnum):
    """Whether a key may still be used; a revoked one never again."""

    ACTIVE = "active"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class Account:
    """One customer; times are seconds since 1970."""

    account_id: str
    name: str
    state: AccountState
    created_at: float
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True)
class Key:
    """One API key of an account, without anything that could pass for it.

    Args:
        pepper: number of the one that it is kept with.
        models: which it may use; empty: all.
        last_used_at: to the minute; None: never.
    """

    key_id: str
    account_id: str
    name: str
    prefix: str
    state: KeyState
    created_at: float
    expires_at: float | None
    pepper: int
    models: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS
    last_used_at: float | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a key speaks for, whether it may, and how much.

    Args:
        sequence: the last key event that this has seen.
        account_month_tokens: what the account has used since the month began, in UTC.
        key_month_tokens: the same of this key alone.
    """

    account_id: str
    key_id: str
    account_state: AccountState
    key_state: KeyState
    expires_at: float | None
    cache_salt: str = field(repr=False)
    sequence: int = 0
    models: tuple[str, ...] = ()
    account_limits: Limits = NO_LIMITS
    key_limits: Limits = NO_LIMITS
    account_month_tokens: int = 0
    key_month_tokens: int = 0


_CHANGES: dict[tuple[AccountState, Change], AccountState] = {
    (AccountState.PENDING, Change.APPROVE): AccountState.APPROVED,
    (AccountState.SUSPENDED, Change.APPROVE): AccountState.APPROVED,
    (AccountState.APPROVED, Change.APPROVE): AccountState.APPROVED,
    (AccountState.APPROVED, Change.SUSPEND): AccountState.SUSPENDED,
    (AccountState.SUSPENDED, Change.SUSPEND): AccountState.SUSPENDED,
    (AccountState.PENDING, Change.CLOSE): AccountState.CLOSED,
    (AccountState.APPROVED, Change.CLOSE): AccountState.CLOSED,
    (AccountState.SUSPENDED, Change.CLOSE): AccountState.CLOSED,
    (AccountState.CLOSED, Change.CLOSE): AccountState.CLOSED,
}


def changed(state: AccountState, change: Change) -> AccountState:
    """The state after a change.

    Raises:
        StateError: it is not possible from this state.
    """
    after = _CHANGES.get((state, change))
    if after is None:
        raise StateError(f"cannot {change} an account that is {state}")
    return after


def account_name(name: str) -> str:
    """A name for an account, as it is stored.

    Raises:
        InvalidFieldError: it cannot be one.
    """
    name = _text(name, "an account's name")
    if not name:
        raise InvalidFieldError("an account's name must not be empty")
    if name.startswith(ACCOUNT_ID_START):
        raise InvalidFieldError(f"an account's name must not start with {ACCOUNT_ID_START}")
    return name


def key_name(name: str) -> str:
    """A name for a key, as it is stored; may be empty.

    Raises:
        InvalidFieldError: it cannot be one.
    """
    return _text(name, "a key's name")


def key_prefix(prefix: str) -> str:
    """The display prefix of a key.

    Raises:
        InvalidFieldError: it cannot be one; above all it must not be a whole key.
    """
    if len(prefix) != PREFIX_LENGTH or not prefix.isascii() or not prefix.isprintable():
        raise InvalidFieldError(f"prefix must be the key's first {PREFIX_LENGTH} characters")
    return prefix


def key_expiry(expires_at: float | None) -> float | None:
    """When a key ends, in seconds since 1970; None: never.

    Raises:
        InvalidFieldError: it is no time after 1970 and before the year 9999.
    """
    if expires_at is None:
        return None
    if not math.isfinite(expires_at) or not 0 < expires_at < _YEAR_9999_S:
        raise InvalidFieldError("expires_at must be a time in seconds since 1970")
    return expires_at


def key_models(models: Iterable[str]) -> tuple[str, ...]:
    """The models that a key may use, each once, in the order given.

    Raises:
        InvalidFieldError: there are too many, or one has a name that no model has.
    """
    names = tuple(dict.fromkeys(models))
    if len(names) > MOST_MODELS:
        raise InvalidFieldError(f"a key may name at most {MOST_MODELS} models")
    for name in names:
        if not name or len(name) > MODEL_LENGTH or not name.isprintable():
            raise InvalidFieldError(
                f"a model's name must have 1 to {MODEL_LENGTH} printable characters"
            )
    return names


def new_account_id(random: Random) -> str:
    """An id that no account name can be taken for."""
    return ACCOUNT_ID_START + random_text(random, _ID_RANDOM_LENGTH)


def new_key_id(random: Random) -> str:
    """An id for a key."""
    return KEY_ID_START + random_text(random, _ID_RANDOM_LENGTH)


def new_cache_salt(random: Random) -> str:
    """What keeps one account's prefix cache from another's: 130 random bits."""
    return random_text(random, _SALT_LENGTH)


def _text(text: str, what: str) -> str:
    text = unicodedata.normalize("NFC", text.strip())
    if len(text) > NAME_LENGTH:
        raise InvalidFieldError(f"{what} must have at most {NAME_LENGTH} characters")
    if not text.isprintable():
        raise InvalidFieldError(f"{what} must have printable characters only")
    return text
