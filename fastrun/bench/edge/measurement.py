"""All scenarios at the edge and its peers, in turns."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from fastrun.bench.edge import cores, load, peers, running, scenarios
from fastrun.bench.edge.cores import Cores
from fastrun.bench.edge.deployment import deployed
from fastrun.bench.edge.figures import Figures, figures
from fastrun.bench.edge.load import Run, Target
from fastrun.bench.edge.programs import program
from fastrun.bench.edge.scenarios import Scenario
from fastrun.local.child import Lifeline

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
    with cores.on(divided.others):
        async with _beside(plan.peers, divided, environ) as (pace_of_peers, others):
            for pace, group in scenarios.by_pace(plan.scenarios):
                await pace_of_peers(pace)
                most = max(scenario.connections for scenario in group)
                async with deployed(
                    streams=most, tokens_per_s=pace, divided=divided, environ=environ
                ) as edge:
                    for scenario in group:
                        await quiet(plan.quiet_s)
                        load_average = os.getloadavg()[0]
                        say(f"{scenario.name}: load average {load_average:.2f} before it")
                        targets = [edge, *others]
                        runs = await _in_turns(loadgen, scenario, targets, plan.repeat)
                        for target, its in zip(targets, runs, strict=True):
                            yield figures(scenario, target.name, its, load_average=load_average)


async def quiet(limit_s: float) -> None:
    """Wait until the machine does nothing else, or for so long."""
    ends = time.monotonic() + limit_s
    while time.monotonic() < ends:
        if os.getloadavg()[0] < QUIET_LOAD:
            return
        await asyncio.sleep(LOOK_S)


Pace = Callable[[float], Awaitable[None]]


@asynccontextmanager
async def _beside(
    programs: Mapping[str, str], divided: Cores, environ: Mapping[str, str]
) -> AsyncIterator[tuple[Pace, Sequence[Target]]]:
    """Run peers, and what they stand before; what sets its pace is told with them."""
    if not programs:
        yield _no_pace, ()
        return
    lifeline = Lifeline()
    async with AsyncExitStack() as stack:
        stack.callback(lifeline.close)
        engine = await stack.enter_async_context(running.engine(program("engine", environ)))
        targets = []
        for name, its_program in programs.items():
            if name == peers.DIRECT:
                targets.append(engine.target)
                continue
            peer = running.started(
                peers.named(name),
                its_program,
                engine,
                divided=divided,
                environ=environ,
                lifeline=lifeline,
            )
            targets.append(await stack.enter_async_context(peer))
        yield engine.pace, targets


async def _no_pace(tokens_per_s: float) -> None:
    """There is nothing to be paced."""


async def _in_turns(
    loadgen: Path, scenario: Scenario, targets: Sequence[Target], repeat: int
) -> list[list[Run]]:
    runs: list[list[Run]] = [[] for _ in targets]
    for _ in range(repeat):
        for target, its in zip(targets, runs, strict=True):
            its.append(await load.run(loadgen, scenario, target))
            await asyncio.sleep(SETTLE_S)
    return runs
