"""All scenarios at the edge and its peers, in turns."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from fastrun.bench.edge import cores, load, peers, running, scenarios
from fastrun.bench.edge.cores import Cores
from fastrun.bench.edge.deployment import deployed
from fastrun.bench.edge.figures import Figures, figures
from fastrun.bench.edge.load import Run, Target
from fastrun.bench.edge.programs import program
from fastrun.bench.edge.running import Engine
from fastrun.bench.edge.scenarios import Scenario

QUIET_LOAD = 0.5
LOOK_S = 2.0
SETTLE_S = 0.5
"""Between two runs, for connections to be closed and answers to be ended."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    scenarios: Sequence[Scenario]
    peers: Mapping[str, str]
    """Their programs by name; that of `direct` is empty."""
    repeat: int
    quiet_s: float
    """How long each scenario may wait for a machine that does nothing else."""


async def measure(
    plan: Plan, environ: Mapping[str, str], say: Callable[[str], None]
) -> AsyncGenerator[Figures]:
    """Measure each scenario at the edge, then at each peer, and all of it again.

    Args:
        plan: what is asked for.
        environ: our own.
        say: told what the machine is doing before each scenario.

    Raises:
        EdgeBenchError: a program cannot be made, or something does not serve.
        LocalError: a stack cannot run here.
    """
    divided = cores.divided(os.sched_getaffinity(0))
    loadgen = program("loadgen", environ)
    async with AsyncExitStack() as stack:
        stack.enter_context(cores.on(divided.others))
        engine = None
        others: list[Target] = []
        if plan.peers:
            engine = await stack.enter_async_context(running.engine(program("engine", environ)))
            others = [
                await stack.enter_async_context(_target(name, at, engine, divided, environ))
                for name, at in plan.peers.items()
            ]
        for pace, group in scenarios.by_pace(plan.scenarios):
            if engine is not None:
                await engine.pace(pace)
            most = max(scenario.connections for scenario in group)
            async with deployed(
                streams=most, tokens_per_s=pace, divided=divided, environ=environ
            ) as edge:
                for scenario in group:
                    await quiet(plan.quiet_s)
                    load_average = os.getloadavg()[0]
                    say(f"{scenario.name}: load average {load_average:.2f} before it")
                    runs = await _in_turns(loadgen, scenario, [edge, *others], plan.repeat)
                    for target, its in runs.items():
                        yield figures(
                            scenario.name,
                            target,
                            its,
                            streamed=scenario.streamed,
                            load_average=load_average,
                        )


async def quiet(limit_s: float) -> None:
    """Wait until the machine does nothing else, or for so long."""
    ends = time.monotonic() + limit_s
    while time.monotonic() < ends:
        if os.getloadavg()[0] < QUIET_LOAD:
            return
        await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def _target(
    name: str, at: str, engine: Engine, divided: Cores, environ: Mapping[str, str]
) -> AsyncIterator[Target]:
    if name == peers.DIRECT:
        yield engine.target
        return
    peer = next(each for each in peers.ALL if each.name == name)
    async with running.started(peer, at, engine, divided, environ) as target:
        yield target


async def _in_turns(
    loadgen: Path, scenario: Scenario, targets: Sequence[Target], repeat: int
) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {target.name: [] for target in targets}
    for _ in range(repeat):
        for target in targets:
            runs[target.name].append(await load.run(loadgen, scenario, target))
            await asyncio.sleep(SETTLE_S)
    return runs
