"""`fastrun bench scheduler`: how it is run and shown."""

import os
from collections.abc import Iterator

import msgspec
import uvloop

from fastrun.bench.scheduler.measurement import Figures, Scenario, measure
from fastrun.bench.scheduler.sessions import SessionError
from fastrun.cli.errors import CommandError
from fastrun.cli.output import print_columns, print_json
from fastrun.local.errors import LocalError

TITLES = (
    "asked/s", "granted/s", "p50 ms", "p99 ms", "most ms", "cpu us", "core", "waited",
    "refused", "queued", "late p99", "late most", "load core", "mib", "load avg",
)  # fmt: skip


def run(scenario: Scenario, *, as_json: bool) -> None:
    """Measure and print.

    Raises:
        CommandError: it cannot be measured here, or the scheduler broke a rule.
    """
    try:
        figures = uvloop.run(_all(scenario))
    except* (LocalError, SessionError) as errors:
        raise CommandError(str(next(_leaves(errors)))) from errors
    if as_json:
        print_json([msgspec.structs.asdict(each) for each in figures])
    else:
        print_columns(TITLES, [_row(each) for each in figures], right=TITLES)


async def _all(scenario: Scenario) -> list[Figures]:
    return [each async for each in measure(scenario, os.environ)]


def _leaves(errors: BaseExceptionGroup) -> Iterator[BaseException]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _row(each: Figures) -> tuple[object, ...]:
    return (
        f"{each.rate:,.0f}" if each.rate else "flat out",
        f"{each.granted_per_s:,.0f}",
        f"{each.p50_ms:.2f}",
        f"{each.p99_ms:.2f}",
        f"{each.most_ms:.1f}",
        f"{each.cpu_us:.0f}",
        f"{each.busy:.0%}",
        f"{each.waited:.0%}",
        each.refused,
        each.queued,
        f"{each.late_ms:.2f}",
        f"{each.late_most_ms:.1f}",
        f"{each.load_busy:.0%}",
        f"{each.resident_mib:.0f}",
        f"{each.load_average:.1f}",
    )
