"""What an account or a key may use at most; the scheduler holds them to it."""

import msgspec

from auth_service.errors import InvalidFieldError

MOST = 10**15  # any more is no limit, and sums of it still fit 64 bits


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Each a number from 1 on; None: any amount."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and completion."""
    concurrent_requests: int | None = None
    tokens_per_month: int | None = None
    """Since the month began, in UTC."""


NO_LIMITS = Limits()


def checked(limits: Limits) -> Limits:
    """The same limits.

    Raises:
        InvalidFieldError: one is 0, or absurdly large.
    """
    for name, value in as_dict(limits).items():
        if value is not None and not 1 <= value <= MOST:
            raise InvalidFieldError(
                f"{name} must be from 1 to {MOST}, or absent for no limit: "
                "to stop all calls suspend the account or revoke the key"
            )
    return limits


def to_json(limits: Limits) -> str:
    """As they are stored."""
    return msgspec.json.encode(limits).decode()


def of_json(text: str) -> Limits:
    """Read what is stored; what a newer code has added is left out."""
    return msgspec.json.decode(text, type=Limits)


def as_dict(limits: Limits) -> dict[str, int | None]:
    """All of them by name."""
    return msgspec.structs.asdict(limits)
