from dataclasses import replace
from datetime import date

import pytest

from auth_service import usage
from auth_service.errors import InvalidFieldError
from auth_service.usage import Days, UsageRecord, UsageStatus, UsageSum

RECORD = UsageRecord(
    request_id="r1",
    account_id="acct_1",
    key_id="key_1",
    model="m",
    worker_id="w",
    prompt_tokens=3,
    cached_tokens=0,
    completion_tokens=4,
    reasoning_tokens=None,
    first_token_ms=5,
    duration_ms=6,
    finish="stop",
    status=UsageStatus.COMPLETED,
    started_at=1.8e9,
)


def test_days():
    """Days are those from the first to the last, both included, over the ends of months as well."""
    days = Days.parse("2028-02-28", "2028-03-01")
    assert days.each() == [date(2028, 2, 28), date(2028, 2, 29), date(2028, 3, 1)]
    assert len(Days.parse("9999-12-31", "9999-12-31").each()) == 1
    assert len(Days.parse("2028-01-01", "2028-12-31")) == usage.MOST_DAYS


@pytest.mark.parametrize(
    ("first", "last", "reason"),
    [
        ("2028-01-02", "2028-01-01", "last_day must not be before first_day"),
        ("2028-01-01", "2029-01-01", "at most 366 days"),
        ("", "2028-01-01", "first_day must be a day such as"),
        ("2028-01-01", "", "last_day must be a day such as"),
        ("2027-02-29", "2028-01-01", "first_day must be a day such as"),
        ("20280101", "2028-01-01", "first_day must be a day such as"),
        ("2028-W01-1", "2028-01-01", "first_day must be a day such as"),
        ("2028-01-01T00:00", "2028-01-01", "first_day must be a day such as"),
        ("2028-01-0\uff11", "2028-01-01", "first_day must be a day such as"),
    ],
)
def test_no_days(first, last, reason):
    """What is no day, runs backwards or is too long is refused, and which of the two it is told."""
    with pytest.raises(InvalidFieldError, match=reason):
        Days.parse(first, last)


def test_a_request_counts_once():
    """Of records with the same request the first is kept, and all others stay."""
    other = replace(RECORD, request_id="r2")
    kept = usage.checked([RECORD, replace(RECORD, prompt_tokens=9), other])
    assert sorted(kept, key=lambda record: record.request_id) == [RECORD, other]


def test_counts_may_be_unknown_or_zero():
    """A count that nobody knows stays None, and 0 stays 0."""
    lost = replace(
        RECORD,
        prompt_tokens=None,
        cached_tokens=None,
        completion_tokens=0,
        first_token_ms=None,
        duration_ms=None,
        worker_id="",
        finish="",
        status=UsageStatus.LOST,
    )
    assert usage.checked([lost]) == [lost]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", ""),
        ("account_id", ""),
        ("key_id", ""),
        ("model", ""),
        ("model", "x" * 1001),
        ("worker_id", "a\0b"),
        ("finish", "a\0b"),
        ("prompt_tokens", 10**12 + 1),
        ("cached_tokens", 2**64 - 1),
        ("completion_tokens", 2**63),
        ("reasoning_tokens", 2**63),
        ("started_at", float("nan")),
        ("started_at", float("inf")),
        ("started_at", 0.0),
        ("started_at", 1e12),
    ],
)
def test_bad_records(field, value):
    """A record that cannot be kept is refused, with its place and its field."""
    with pytest.raises(InvalidFieldError, match=rf"records\[1\]: {field} "):
        usage.checked([RECORD, replace(RECORD, **{field: value})])


def test_too_many_records():
    """A batch has at most 1,000 records."""
    records = [replace(RECORD, request_id=f"r{number}") for number in range(1001)]
    assert len(usage.checked(records[:1000])) == 1000
    with pytest.raises(InvalidFieldError, match="at most 1000"):
        usage.checked(records)


def test_too_many_sums():
    """An answer that would be too long is refused, and what to ask instead is said."""
    one = UsageSum(
        day=date(2028, 1, 1),
        account_id="a",
        model="m",
        requests=1,
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        reasoning_tokens=0,
        lost_requests=0,
        cost_micros=None,
    )
    assert usage.limited([one] * usage.MOST_SUMS)
    with pytest.raises(InvalidFieldError, match="ask for fewer days, one account or one model"):
        usage.limited([one] * (usage.MOST_SUMS + 1))


def test_places_are_read_as_they_are_written():
    """The token of a place is that place again, whatever the model is called."""
    place = usage.Place(date(2026, 11, 29), "acct_1", 'a "model", \u00e9')
    assert usage.Place.parse(place.token()) == place


@pytest.mark.parametrize("token", ["x", "[]", '["2026-13-01","a","m"]', '["2026-11-29","a"]', "1"])
def test_tokens_of_others(token):
    """What no answer had is refused."""
    with pytest.raises(InvalidFieldError, match="page_token"):
        usage.Place.parse(token)
