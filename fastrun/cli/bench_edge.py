"""`fastrun bench edge`: how it is run and shown."""

import asyncio
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from fastrun.bench.edge import peers
from fastrun.bench.edge.errors import EdgeBenchError
from fastrun.bench.edge.figures import Figures
from fastrun.bench.edge.measurement import Plan, measure
from fastrun.bench.edge.page import Circumstances, write_page
from fastrun.bench.edge.plot import PlotError, draw
from fastrun.bench.edge.scenarios import NAMES, chosen
from fastrun.bench.edge.table import TEXTS, TITLES, rows
from fastrun.cli.errors import CommandError
from fastrun.cli.output import print_columns, print_json
from fastrun.local.errors import LocalError


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody typed."""

    scenarios: Sequence[str]
    """Their names; none: all of them."""
    seconds: float | None
    repeat: int
    peers: Sequence[str]
    """Only these; none: all that are here."""
    alone: bool
    """Without any peers."""
    peer_folder: Path | None
    quiet_s: float
    plot: Path | None
    page: Path | None
    as_json: bool


def run(asked: Asked) -> None:
    """Measure and print.

    Raises:
        CommandError: it cannot be measured or written here.
    """
    if sys.platform != "linux":
        raise CommandError("fastrun bench edge reads Linux's own counters: run it on Linux")
    for name in asked.scenarios:
        if name not in NAMES:
            raise CommandError(f"there is no scenario '{name}'; there are {', '.join(NAMES)}")
    try:
        plan = _plan(asked)
        figures = asyncio.run(_all(plan))
    except (EdgeBenchError, LocalError) as error:
        raise CommandError(str(error)) from error
    if asked.as_json:
        print_json([msgspec.structs.asdict(each) for each in figures])
    else:
        right = [title for title in TITLES if title not in TEXTS]
        print_columns(TITLES, list(rows(figures)), right=right)
    _write(asked, figures, _circumstances(plan))


def _plan(asked: Asked) -> Plan:
    programs: dict[str, str] = {}
    if not asked.alone:
        found = peers.installed(asked.peer_folder, os.environ.get("PATH", ""))
        programs = {name: found.get(name, "") for name in peers.wanted(asked.peers, found)}
    return Plan(
        scenarios=list(chosen(asked.scenarios, seconds=asked.seconds)),
        peers=programs,
        repeat=asked.repeat,
        quiet_s=asked.quiet_s,
    )


async def _all(plan: Plan) -> list[Figures]:
    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    async with aclosing(measure(plan, os.environ, say)) as measured:
        return [each async for each in measured]


def _circumstances(plan: Plan) -> Circumstances:
    versions = {name: peers.version(name, at) for name, at in plan.peers.items() if at}
    return Circumstances(
        date=datetime.now(UTC).date().isoformat(),
        python=platform.python_version(),
        processor=_processor(Path("/proc/cpuinfo").read_text()),
        cores=len(os.sched_getaffinity(0)),
        versions={name: version for name, version in versions.items() if version},
    )


def _processor(described: str) -> str:
    """Return the model that /proc/cpuinfo names; some kinds of machines have none there."""
    fields = (line.partition(":") for line in described.splitlines())
    models = (value.strip() for name, _, value in fields if name.strip() == "model name")
    return next(models, platform.machine())


def _write(asked: Asked, figures: Sequence[Figures], around: Circumstances) -> None:
    try:
        if asked.plot is not None:
            draw(figures, asked.plot)
        if asked.page is not None:
            write_page(asked.page, figures, around, asked.plot)
    except PlotError as error:
        raise CommandError(f"no plot: {error}") from error
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot write: {error}") from error
