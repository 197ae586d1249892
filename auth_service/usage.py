"""What requests have used: which records and which questions make sense. Pure."""

import math
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum

import msgspec

from auth_service.errors import InvalidFieldError

MOST_RECORDS = 1000
MOST_DAYS = 366
MOST_SUMS = 20_000  # to tell more at once would hold up other calls
PAGE_SUMS = 1000

# So generous that no honest record is refused, and so small that sums always fit 64 bits.
_MOST_COUNT = 10**12
_MOST_TEXT = 1000
_YEAR_9999_S = 253_370_764_800.0


class UsageStatus(StrEnum):
    """How a request ended; see auth.proto."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    PARTIAL = "partial"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """What one request used.

    Args:
        request_id: of the edge; counts once, however often it is recorded.
        account_id: whose request it was.
        key_id: the key that it came with.
        model: the name that was asked for.
        worker_id: the last that ran it; may be empty.
        prompt_tokens: once for each prompt; None, as for all counts: nobody knows.
        cached_tokens: of these, how many came from the prefix cache.
        completion_tokens: of all generations.
        reasoning_tokens: of these, how many were reasoning.
        first_token_ms: None: there was no token.
        duration_ms: None: nobody knows.
        finish: of the first generation; may be empty.
        status: how it ended.
        started_at: seconds since 1970; says on which day, and at which price, it counts.
    """

    request_id: str
    account_id: str
    key_id: str
    model: str
    worker_id: str
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    first_token_ms: int | None
    duration_ms: int | None
    finish: str
    status: UsageStatus
    started_at: float


class UsageSum(msgspec.Struct, frozen=True, kw_only=True):
    """What an account used of a model on a day in UTC.

    Args:
        day: in UTC.
        account_id: whose.
        model: of which.
        requests: how many, with the lost ones.
        prompt_tokens: their sum.
        cached_tokens: their sum.
        completion_tokens: their sum.
        reasoning_tokens: their sum.
        lost_requests: how many had counts that nobody knows.
        cost_micros: millionths of the currency's unit: the exact cost of all requests, each at the
            price when it came, rounded once, half up; None: no price was set.
    """

    day: date
    account_id: str
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    lost_requests: int
    cost_micros: int | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where one page of sums ends and the next one begins."""

    day: date
    account_id: str
    model: str

    @classmethod
    def of(cls, each: UsageSum) -> "Place":
        """Behind a sum."""
        return cls(each.day, each.account_id, each.model)

    @classmethod
    def parse(cls, token: str) -> "Place":
        """Read what token() wrote.

        Raises:
            InvalidFieldError: somebody else wrote it.
        """
        try:
            day, account_id, model = msgspec.json.decode(token, type=tuple[date, str, str])
        except msgspec.DecodeError:
            raise InvalidFieldError("page_token must be one that an answer had") from None
        return cls(day, account_id, model)

    def token(self) -> str:
        """Write it down for who asks for the next page."""
        return msgspec.json.encode((self.day, self.account_id, self.model)).decode()


@dataclass(frozen=True, slots=True)
class Days:
    """Days in UTC, both included."""

    first: date
    last: date

    @classmethod
    def parse(cls, first: str, last: str) -> "Days":
        """Read what a caller asks for.

        Raises:
            InvalidFieldError: these are no days, none at all, or too many.
        """
        days = cls(_day(first, "first_day"), _day(last, "last_day"))
        if days.last < days.first:
            raise InvalidFieldError("last_day must not be before first_day")
        if len(days) > MOST_DAYS:
            raise InvalidFieldError(f"ask for at most {MOST_DAYS} days at once")
        return days

    def __len__(self) -> int:
        return (self.last - self.first).days + 1

    def each(self) -> list[date]:
        """All of them, in order."""
        return [self.first + timedelta(days=number) for number in range(len(self))]


def checked(records: list[UsageRecord]) -> list[UsageRecord]:
    """The records to keep: each request once, as it comes first.

    Raises:
        InvalidFieldError: there are too many, or one cannot be kept.
    """
    if len(records) > MOST_RECORDS:
        raise InvalidFieldError(f"records must be at most {MOST_RECORDS} at once")
    for index, record in enumerate(records):
        wrong = _wrong(record)
        if wrong:
            raise InvalidFieldError(f"records[{index}]: {wrong}")
    return list({record.request_id: record for record in reversed(records)}.values())


def limited(sums: list[UsageSum]) -> list[UsageSum]:
    """The sums, if one answer can hold them.

    Raises:
        InvalidFieldError: it cannot.
    """
    if len(sums) > MOST_SUMS:
        raise InvalidFieldError(
            f"there are more than {MOST_SUMS} sums: ask for fewer days, one account or one model"
        )
    return sums


def _day(text: str, field: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = None
    if day is None or day.isoformat() != text:  # Python reads other forms of ISO 8601 as well
        raise InvalidFieldError(f"{field} must be a day such as 2026-11-29")
    return day


def _wrong(record: UsageRecord) -> str | None:
    """What is wrong with a record; None: nothing."""
    for field in ("request_id", "account_id", "key_id", "model", "worker_id", "finish"):
        text = getattr(record, field)
        if not text and field not in {"worker_id", "finish"}:
            return f"{field} must not be empty"
        if len(text) > _MOST_TEXT or "\0" in text:
            return f"{field} must have at most {_MOST_TEXT} characters, and no NUL"
    for field in ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"):
        if not 0 <= (getattr(record, field) or 0) <= _MOST_COUNT:
            return f"{field} must be at most {_MOST_COUNT}, or absent if nobody knows"
    if not math.isfinite(record.started_at) or not 0 < record.started_at < _YEAR_9999_S:
        return "started_at must be a time in seconds since 1970"
    return None
