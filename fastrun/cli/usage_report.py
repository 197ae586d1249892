"""What accounts have used, as lines of a report. Pure."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fastrun.cli.money import money
from fastrun.service.terminal import printable
from fastrun.v1.auth_pb2 import UsageSum

COUNTS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "lost_requests",
)
# Spreadsheets take a cell that begins so for a formula, and whoever names an account may know that.
_FORMULA = ("=", "+", "-", "@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What an account used of a model.

    Args:
        day: in UTC; empty: over all days.
        account: its name.
        account_id: its id.
        model: of which.
        requests: with the lost ones.
        prompt_tokens: with the cached ones.
        cached_tokens: of these, those that came from the prefix cache.
        completion_tokens: with the reasoning.
        reasoning_tokens: of these, those that were reasoning.
        lost_requests: those whose counts nobody knows.
        cost_micros: in millionths of the currency's unit; None: no price was set.
    """

    day: str = ""
    account: str = ""
    account_id: str = ""
    model: str = ""
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    lost_requests: int = 0
    cost_micros: int | None = None


def line(each: UsageSum, names: Mapping[str, str]) -> Line:
    """One line of what the auth service tells; `names` are those of accounts, by id."""
    return Line(
        day=each.day,
        account=names.get(each.account_id, each.account_id),
        account_id=each.account_id,
        model=each.model,
        cost_micros=each.cost_micros if each.HasField("cost_micros") else None,
        **{count: getattr(each, count) for count in COUNTS},
    )


def over_days(lines: Iterable[Line]) -> list[Line]:
    """One line for each account and model, by account and model."""
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for each in lines:
        groups.setdefault((each.account, each.account_id, each.model), []).append(each)
    return [
        _added(group, account=account, account_id=account_id, model=model)
        for (account, account_id, model), group in sorted(groups.items())
    ]


def total(lines: Sequence[Line]) -> Line:
    """All of it; its cost is that of what has a price."""
    return _added(lines)


def unpriced(lines: Iterable[Line]) -> list[str]:
    """The models of which something has no price, by name."""
    return sorted({each.model for each in lines if each.cost_micros is None})


def titles(*, days: bool) -> list[str]:
    """What the cells of a line are."""
    counts = (count.removesuffix("_tokens").removesuffix("_requests") for count in COUNTS)
    return [*(["day"] if days else []), "account", "model", *counts, "cost"]


def cells(each: Line, *, days: bool) -> list[str]:
    """A line for people."""
    return [
        *([each.day] if days else []),
        each.account,
        each.model,
        *(f"{getattr(each, count):,}" for count in COUNTS),
        "-" if each.cost_micros is None else money(each.cost_micros),
    ]


def fields(each: Line) -> dict[str, Any]:
    """A line for programs; a sum has no day, and a total neither account nor model."""
    return {name: value for name, value in asdict(each).items() if value != ""}


def to_csv(lines: Iterable[Line], *, days: bool) -> str:
    """All lines for spreadsheets, without a total, which these make themselves."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*(["day"] if days else []), "account", "account_id", "model", *COUNTS, "cost"])
    for each in lines:
        writer.writerow(
            [
                *([each.day] if days else []),
                *map(_plain, (each.account, each.account_id, each.model)),
                *(getattr(each, count) for count in COUNTS),
                "" if each.cost_micros is None else money(each.cost_micros),
            ]
        )
    return text.getvalue()


def _added(
    lines: Sequence[Line], *, account: str = "", account_id: str = "", model: str = ""
) -> Line:
    costs = [each.cost_micros for each in lines if each.cost_micros is not None]
    return Line(
        account=account,
        account_id=account_id,
        model=model,
        cost_micros=sum(costs) if costs else None,
        **{count: sum(getattr(each, count) for each in lines) for count in COUNTS},
    )


def _plain(text: str) -> str:
    text = printable(text)
    return f"'{text}" if text.startswith(_FORMULA) else text
