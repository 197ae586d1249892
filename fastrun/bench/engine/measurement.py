"""Runs the workloads on each engine in turn, and takes medians."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from fastrun.bench.engine.contender import MODULES, READY
from fastrun.bench.engine.workload import Figures, Run, Workload, figures

LOAD_LIMIT_S = 300.0
RUN_LIMIT_S = 600.0
STOP_LIMIT_S = 10.0


class EngineBenchError(Exception):
    """It cannot be measured; the message says why."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    engines: Sequence[str]
    """Names in MODULES."""
    model: Path
    """A GGUF file."""
    streams: Sequence[int]
    tokens: int
    repeat: int
    threads: int
    peers: Path | None = None
    """A folder with packages of other engines."""


async def measure(scenario: Scenario, environ: Mapping[str, str]) -> list[Figures]:
    """Measure all of it.

    Raises:
        EngineBenchError: an engine is not installed, or fails.
    """
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(EngineProcess(name, scenario, environ))
            for name in scenario.engines
        }
        runs: dict[tuple[str, int], list[Run]] = {}
        for engine in engines.values():
            await engine.run(Workload(min(scenario.streams), 8))  # compiles, and warms caches
        for turn in range(1, 1 + scenario.repeat):
            for streams in scenario.streams:
                workload = Workload(streams, scenario.tokens, first_seed=1000 * turn)
                for name, engine in engines.items():
                    runs.setdefault((name, streams), []).append(await engine.run(workload))
    return [figures(name, streams, each) for (name, streams), each in runs.items()]


class EngineProcess:
    """One engine, loaded; to be used as a context, which ends it."""

    def __init__(self, name: str, scenario: Scenario, environ: Mapping[str, str]) -> None:
        self._name = name
        self._arguments = (name, str(scenario.threads), str(scenario.model))
        self._environ = {**environ}
        if scenario.peers is not None:
            paths = (environ.get("PYTHONPATH", ""), str(scenario.peers))
            self._environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        """Load the model."""
        module = f"{__package__}.contender"
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=self._environ,
        )
        # What libraries print before is not for us.
        while await self._line(LOAD_LIMIT_S) != READY:
            pass
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End it."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_LIMIT_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def run(self, workload: Workload) -> Run:
        """Run a workload while no other engine runs.

        Raises:
            EngineBenchError: it failed, or did not make all tokens.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(workload) + b"\n")
        run = msgspec.json.decode(await self._line(RUN_LIMIT_S), type=Run)
        wanted = workload.streams * workload.tokens
        if run.tokens != wanted:
            raise EngineBenchError(f"{self._name} made {run.tokens} of {wanted} tokens")
        return run

    async def _line(self, limit_s: float) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), limit_s)
        except TimeoutError as error:
            raise EngineBenchError(f"{self._name} took over {limit_s:.0f} s") from error
        if not line:
            raise EngineBenchError(
                f"{self._name} does not run here: run python -m {__package__}.contender "
                f"{' '.join(self._arguments)} to see why"
            )
        return line.decode().strip()


def installed(peers: Path | None) -> list[str]:
    """Return the engines that can be measured here: ours, and those whose packages are found."""
    paths = [*sys.path, *([str(peers)] if peers else [])]
    packages = {
        "openvino_genai_engine": "openvino_genai",
        "xllamacpp_engine": "xllamacpp",
    }
    return [
        name
        for name, module in MODULES.items()
        if module not in packages or any((Path(path) / packages[module]).is_dir() for path in paths)
    ]
