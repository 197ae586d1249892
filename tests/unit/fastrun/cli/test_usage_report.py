import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrun.cli.usage_report import (
    COUNTS,
    Line,
    cells,
    fields,
    line,
    over_days,
    titles,
    to_csv,
    total,
    unpriced,
)
from fastrun.v1.auth_pb2 import UsageSum

ADA = {"account": "ada", "account_id": "acct_1"}
LINES = [
    Line(day="2026-11-01", model="m", requests=2, prompt_tokens=1500, cost_micros=10, **ADA),
    Line(day="2026-11-02", model="m", requests=1, lost_requests=1, cost_micros=5, **ADA),
    Line(day="2026-11-02", model="free", requests=4, **ADA),
]


def test_line():
    """A line has the account's name; a cost that is 0 is another than none."""
    told = UsageSum(day="2026-11-01", account_id="acct_1", model="m", requests=1, cost_micros=0)

    assert line(told, {"acct_1": "ada"}) == Line(
        day="2026-11-01", model="m", requests=1, cost_micros=0, **ADA
    )
    told.ClearField("cost_micros")
    assert line(told, {}).account == "acct_1"
    assert line(told, {}).cost_micros is None


def test_over_days():
    """Days are added up by account and model."""
    assert over_days(LINES) == [
        Line(model="free", requests=4, **ADA),
        Line(model="m", requests=3, prompt_tokens=1500, lost_requests=1, cost_micros=15, **ADA),
    ]


counts = st.integers(0, 10**12)
anything = st.builds(
    Line,
    day=st.sampled_from(["2026-11-01", "2026-11-02"]),
    account=st.sampled_from(["ada", "=1+1"]),
    account_id=st.sampled_from(["acct_1", "acct_2"]),
    model=st.sampled_from(["m", "a,b"]),
    cost_micros=st.none() | counts,
    **dict.fromkeys(COUNTS, counts),
)


@given(st.lists(anything))
def test_total(lines):
    """The total is the same whether days are added up first or not."""
    assert total(over_days(lines)) == total(lines)
    assert total(lines).requests == sum(each.requests for each in lines)
    priced = [each.cost_micros for each in lines if each.cost_micros is not None]
    assert total(lines).cost_micros == (sum(priced) if priced else None)


@given(st.lists(anything), st.booleans())
def test_csv(lines, days):
    """CSV says the same as the lines, whatever the names."""
    rows = list(csv.DictReader(io.StringIO(to_csv(lines, days=days))))

    assert [int(row["requests"]) for row in rows] == [each.requests for each in lines]
    assert [row["model"] for row in rows] == [each.model for each in lines]
    assert [row["cost"] == "" for row in rows] == [each.cost_micros is None for each in lines]
    assert all(("day" in row) is days for row in rows)


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@x", "'@x"),
        ("\t=1", r"\t=1"),
        ("a=1", "a=1"),
    ],
)
def test_no_formulas(name, cell):
    """A spreadsheet takes no name for a formula."""
    [row] = csv.DictReader(io.StringIO(to_csv([Line(account=name)], days=True)))

    assert row["account"] == cell


def test_cells():
    """People see thousands apart, and a cost that nobody knows as a dash."""
    assert dict(zip(titles(days=True), cells(LINES[0], days=True), strict=True)) == {
        "day": "2026-11-01",
        "account": "ada",
        "model": "m",
        "requests": "2",
        "prompt": "1,500",
        "cached": "0",
        "completion": "0",
        "reasoning": "0",
        "lost": "0",
        "cost": "0.00001",
    }
    assert cells(LINES[2], days=False)[-1] == "-"


def test_fields():
    """Programs see counts that are 0 and costs that nobody knows, and no day where it is a sum."""
    assert fields(over_days(LINES)[0]) == {
        "account": "ada",
        "account_id": "acct_1",
        "model": "free",
        "requests": 4,
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "completion_tokens": 0,
        "reasoning_tokens": 0,
        "lost_requests": 0,
        "cost_micros": None,
    }


def test_unpriced():
    """The models are named whose cost is not in the total."""
    assert unpriced(LINES) == ["free"]
