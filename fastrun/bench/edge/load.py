"""One run of the load, and what it counted."""

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from fastrun.bench.edge.errors import EdgeBenchError
from fastrun.bench.edge.scenarios import Scenario

MARGIN_S = 60.0


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Something that serves the OpenAI API on this machine."""

    name: str
    port: int
    key: str
    model: str
    processes: Mapping[str, Sequence[int]]
    """Their ids, by what they are; those that are measured are called `measured`."""


class Times(msgspec.Struct, frozen=True):
    """Microseconds."""

    p50: int
    p99: int
    most: int


class Process(msgspec.Struct, frozen=True):
    """What a group of processes took."""

    ran_s: float
    """Of all threads, in the window."""
    resident_kib: tuple[int, int]
    """When the window began, and when it ended."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What the load counted in its window."""

    seconds: float
    requests: int
    chunks: int
    tokens: int
    """Of streams; others do not show them."""
    errors: int
    """Connections that failed or broke off, in the window or before."""
    refused: int
    """Requests that got another status than 200."""
    cut: int
    """Streams that ended without [DONE]."""
    own_s: float
    """That the load itself ran."""
    latency_us: Times | None
    first_token_us: Times | None
    gap_us: Times | None
    """Between two chunks of a stream."""
    delay_us: Times | None
    """From the moment a token is made to the moment it is here."""
    processes: Mapping[str, Process]

    @property
    def failures(self) -> int:
        """What should not have happened."""
        return self.errors + self.refused + self.cut


async def run(program: Path, scenario: Scenario, target: Target) -> Run:
    """Run the load against a target.

    Raises:
        EdgeBenchError: the target does not take it.
    """
    with tempfile.NamedTemporaryFile() as body:
        body.write(scenario.body(target.model))
        body.flush()
        process = await asyncio.create_subprocess_exec(
            program,
            *_arguments(scenario, target, body.name),
            env={**os.environ, "OPENAI_API_KEY": target.key},  # an argument is seen by everybody
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        limit_s = scenario.ramp_s + scenario.warm_s + scenario.window_s + MARGIN_S
        try:
            out, complaint = await asyncio.wait_for(process.communicate(), limit_s)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode != 0:
        said = complaint.decode(errors="replace").strip() or f"status {process.returncode}"
        raise EdgeBenchError(f"{target.name} does not take {scenario.name}: {said}")
    return msgspec.json.decode(out, type=Run)


def _arguments(scenario: Scenario, target: Target, body: str) -> list[str]:
    fields = {
        "--port": target.port,
        "--body": body,
        "--connections": scenario.connections,
        "--ramp-ms": round(1000 * scenario.ramp_s),
        "--warm-ms": round(1000 * scenario.warm_s),
        "--window-ms": round(1000 * scenario.window_s),
    }
    pairs = [(name, str(value)) for name, value in fields.items()]
    pairs += [
        ("--process", f"{name}:{','.join(map(str, pids))}")
        for name, pids in target.processes.items()
    ]
    return [part for pair in pairs for part in pair]
