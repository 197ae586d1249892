"""One scheduler under several loads, and the figures of each."""

import asyncio
import gc
import os
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from fastrun.bench.placement.report import quantile
from fastrun.bench.scheduler import processor_time
from fastrun.bench.scheduler.deployment import Deployment, deployed
from fastrun.bench.scheduler.load import Answered, Closed, Load, Open, UnansweredError
from fastrun.bench.scheduler.requests import Mix
from fastrun.bench.scheduler.sessions import SessionError
from fastrun.service import rpc
from fastrun.service.identity import Role
from fastrun.service.tls import Tls
from fastrun.v1.scheduler_pb2 import WatchFleetRequest, WatchFleetResponse
from fastrun.v1.scheduler_pb2_grpc import SchedulerServiceStub

AT_ONCE = 128
"""Requests that wait for their answers while the scheduler gets all it can take."""
EMPTY_S = 10.0
_NOT_SHOWN = f"the scheduler has not shown its fleet in {EMPTY_S:.0f} s"


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    edges: int
    workers: int
    slots: int
    hold_s: float
    mix: Mix
    rates: Sequence[float]
    """Requests a second."""
    seconds: float
    """At each rate."""
    flat_out: int
    """Requests as fast as they are answered, before all else."""
    repeat: int
    database: bool


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One load; the median of several runs."""

    rate: float
    """As asked for, each second; 0: as fast as they are answered."""
    granted_per_s: float
    p50_ms: float
    """From the moment an edge asks to the moment it has its slot."""
    p99_ms: float
    most_ms: float
    cpu_us: float
    """That the scheduler ran for each request: to grant it, to free it, and heartbeats."""
    busy: float
    """What part of a core the scheduler took."""
    waited: float
    """What part of the time its first thread could have run, and others had its core."""
    refused: int
    queued: int
    late_ms: float
    """How late the load itself was, at the 99th percentile: so much of a wait may be its own."""
    late_most_ms: float
    load_busy: float
    """What part of a core the load took."""
    resident_mib: float
    load_average: float
    """Of the machine, in the last minute."""


async def measure(scenario: Scenario, environ: Mapping[str, str]) -> AsyncIterator[Figures]:
    """Start a scheduler, and measure it under each load.

    Raises:
        LocalError: it cannot run here.
        SessionError: it broke a rule, or a session.
    """
    async with deployed(database=scenario.database, environ=environ) as deployment:
        load = Load(
            edges=scenario.edges,
            workers=scenario.workers,
            slots=scenario.slots,
            hold_s=scenario.hold_s,
        )
        certs = deployment.certs
        gc.disable()  # a pause here would look like one of the scheduler
        try:
            await load.connect(
                deployment.address, Tls.of_folder(certs / "edge"), Tls.of_folder(certs / "worker")
            )
            if scenario.flat_out:
                at_once = min(AT_ONCE, scenario.workers * scenario.slots)
                flat_out = Closed(at_once=at_once, requests=scenario.flat_out)
                yield await _median(load, flat_out, scenario, deployment)
            for rate in scenario.rates:
                plan = Open(rate=rate, seconds=scenario.seconds)
                yield await _median(load, plan, scenario, deployment)
            await _check_empty(deployment)
        finally:
            gc.enable()
            await load.close()


async def _median(
    load: Load, plan: Open | Closed, scenario: Scenario, deployment: Deployment
) -> Figures:
    runs = []
    for _ in range(scenario.repeat):
        before, own_before = processor_time.of_process(deployment.pid), time.process_time()
        began = time.perf_counter()
        try:
            answered = await load.run(plan, scenario.mix)
        except UnansweredError as error:
            raise SessionError(f"{error}: {await _told(deployment)}") from error
        whole_s = time.perf_counter() - began
        ran = processor_time.of_process(deployment.pid) - before
        own_busy = (time.process_time() - own_before) / whole_s
        memory = processor_time.resident_mib(deployment.pid)
        runs.append(
            _figures(plan, answered, ran, whole_s=whole_s, own_busy=own_busy, memory=memory)
        )
    fields = {
        name: statistics.median(getattr(run, name) for run in runs)
        for name in Figures.__struct_fields__
    }
    return Figures(**fields)


def _figures(
    plan: Open | Closed,
    answered: Answered,
    ran: processor_time.ProcessorTime,
    *,
    whole_s: float,
    own_busy: float,
    memory: float,
) -> Figures:
    waits_s, took_s = answered.waits_s, answered.took_s
    return Figures(
        rate=plan.rate if isinstance(plan, Open) else 0.0,
        granted_per_s=len(waits_s) / took_s,
        p50_ms=1000 * quantile(waits_s, 0.5),
        p99_ms=1000 * quantile(waits_s, 0.99),
        most_ms=1000 * max(waits_s, default=0.0),
        cpu_us=1e6 * ran.ran_s / max(len(waits_s), 1),
        busy=ran.ran_s / whole_s,
        waited=ran.main_waited_s / max(ran.main_waited_s + ran.main_ran_s, 1e-9),
        refused=answered.refused,
        queued=answered.queued,
        late_ms=1000 * quantile(answered.late_s, 0.99),
        late_most_ms=1000 * max(answered.late_s, default=0.0),
        load_busy=own_busy,
        resident_mib=memory,
        load_average=os.getloadavg()[0],
    )


async def _check_empty(deployment: Deployment) -> None:
    """Make sure that the scheduler has counted right: nothing runs, and nothing is held.

    Raises:
        SessionError: something is.
    """
    problem = _NOT_SHOWN
    try:
        async with asyncio.timeout(EMPTY_S):
            async for view in _views(deployment):
                if not (held := _held(view)):
                    return
                problem = f"{held} slots are held, and nothing runs"
    except TimeoutError:
        raise SessionError(problem) from None


async def _told(deployment: Deployment) -> str:
    """Say what the scheduler makes of it, where requests were not answered."""
    try:
        async with asyncio.timeout(EMPTY_S):
            view = await anext(_views(deployment))
    except TimeoutError:
        return _NOT_SHOWN
    leads = f"leads in term {view.term}" if view.leads else "stands by"
    waiting = sum(queue.waiting for queue in view.queues)
    states = Counter(worker.state for worker in view.workers)
    workers = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return (
        f"the scheduler {leads}, {waiting} requests wait there and {_held(view)} slots are held, "
        f"{view.edges} edges are there and workers are {workers}"
    )


async def _views(deployment: Deployment) -> AsyncIterator[WatchFleetResponse]:
    tls = Tls.of_folder(deployment.certs / "operator")
    async with rpc.channel(deployment.address, Role.SCHEDULER, tls) as channel:
        stub = SchedulerServiceStub(channel)
        async for view in stub.WatchFleet(WatchFleetRequest(interval_ms=100)):
            yield view


def _held(view: WatchFleetResponse) -> int:
    return view.drift + sum(worker.slots_in_use for worker in view.workers)
