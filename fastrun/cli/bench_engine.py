"""`fastrun bench engine`: how it is run and shown."""

import asyncio
import os
from pathlib import Path

import msgspec

from fastrun.bench.engine.measurement import EngineBenchError, Scenario, installed, measure
from fastrun.bench.engine.workload import Figures
from fastrun.cli.errors import CommandError
from fastrun.cli.output import print_columns, print_json
from gpu_worker.engine.cpu.model_source import default_source
from gpu_worker.engine.cpu.network import available_cores
from gpu_worker.engine.errors import ModelError

OURS = "fastrun"
TITLES = ("engine", "streams", "tokens/cpu-s", "ratio", "tokens/s", "ttft ms")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed."""

    engines: list[str]
    """Empty: all that are installed."""
    model: Path | None
    streams: list[int]
    tokens: int
    repeat: int
    threads: int
    """0: one per core."""
    peers: Path | None


def run(asked: Asked, *, as_json: bool) -> None:
    """Measure and print.

    Raises:
        CommandError: it cannot be measured here.
    """
    found = installed(asked.peers)
    if missing := [name for name in asked.engines if name not in found]:
        raise CommandError(f"{missing[0]} is not here: choose among {', '.join(found)}")
    try:
        scenario = Scenario(
            engines=asked.engines or found,
            model=asked.model or default_source().path,
            streams=asked.streams,
            tokens=asked.tokens,
            repeat=asked.repeat,
            threads=asked.threads or available_cores(),
            peers=asked.peers,
        )
    except ModelError as error:
        raise CommandError(str(error)) from error
    try:
        figures = asyncio.run(measure(scenario, os.environ))
    except EngineBenchError as error:
        raise CommandError(str(error)) from error
    if as_json:
        print_json([msgspec.structs.asdict(each) for each in figures])
    else:
        print_columns(TITLES, rows(figures), right=TITLES[1:])


def rows(figures: list[Figures]) -> list[tuple[object, ...]]:
    """Lay figures out; the ratio is how much more ours makes of a second of processor; pure."""
    ours = {each.streams: each.tokens_per_cpu_s for each in figures if each.engine == OURS}
    return [
        (
            each.engine,
            each.streams,
            f"{each.tokens_per_cpu_s:.1f}",
            f"{ours[each.streams] / each.tokens_per_cpu_s:.2f}" if each.streams in ours else "",
            f"{each.tokens_per_s:.1f}",
            f"{each.first_token_ms:.0f}",
        )
        for each in figures
    ]
