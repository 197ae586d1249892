"""`fastrun bench start`: how it is measured and shown."""

import asyncio
import os
import resource
import statistics
from collections.abc import Mapping

import msgspec

from fastrun.cli.output import print_columns, print_json
from fastrun.cli.own_worker import OwnWorker

START_LIMIT_S = 3600.0
STOP_LIMIT_S = 60.0
TITLES = ("starts", "seconds", "least", "cpu seconds", "least cpu")


class Start(msgspec.Struct, frozen=True):
    """What one start took."""

    seconds: float
    """Until the worker served."""
    cpu_seconds: float
    """Of the worker and the process that tries grammars out, until both had ended again."""


def run(repeat: int, *, as_json: bool) -> None:
    """Measure and print.

    Raises:
        CommandError: the worker does not start.
    """
    starts = asyncio.run(_measure(repeat, os.environ))
    if as_json:
        print_json([msgspec.structs.asdict(start) for start in starts])
    else:
        print_columns(TITLES, [row(starts)], right=TITLES)


def row(starts: list[Start]) -> tuple[object, ...]:
    """Lay the medians out, and the least, which others' work on the machine disturbs less; pure."""
    wall, cpu = ([start[at] for start in map(msgspec.structs.astuple, starts)] for at in (0, 1))
    figures = (statistics.median(wall), min(wall), statistics.median(cpu), min(cpu))
    return (len(starts), *(f"{figure:.2f}" for figure in figures))


async def _measure(repeat: int, environ: Mapping[str, str]) -> list[Start]:
    # The first one may have to convert the model, and to read all files from the disk.
    return [await _start(environ) for _ in range(1 + repeat)][1:]


async def _start(environ: Mapping[str, str]) -> Start:
    before = _cpu_seconds()
    own = OwnWorker(environ, start_limit_s=START_LIMIT_S, stop_limit_s=STOP_LIMIT_S)
    try:
        async with own:
            _, seconds = await own.start()
            await own.stop()
    finally:
        own.forget_log()
    return Start(seconds, _cpu_seconds() - before)


def _cpu_seconds() -> float:
    """Return what children have used that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
