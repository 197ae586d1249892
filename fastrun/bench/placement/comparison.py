"""Runs policies over the same requests, at loads that are measured in what the fleet can carry."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from fastrun.bench.placement.cache import CacheFollower
from fastrun.bench.placement.dispatch import Dispatcher, FifoDispatcher, Waiting
from fastrun.bench.placement.policies import POLICIES
from fastrun.bench.placement.report import Report, report
from fastrun.bench.placement.scheduler_dispatch import SchedulerDispatcher
from fastrun.bench.placement.simulation import Simulation
from fastrun.bench.placement.trace import Request, at_rate
from fastrun.bench.placement.workers import Machine, SimulatedWorker

OURS = "fastrun"
NAMES = (OURS, *POLICIES)

MOST_REFUSED = 0.01
# At this rate all come at once, as far as workers can tell.
MOST_RATE = 1e6


class TooFewError(Exception):
    """There are too few requests to fill a fleet, even all at once."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many workers of which kind, and the seed of all chance."""

    workers: int
    machine: Machine
    waiting: Waiting
    seed: int

    def simulation(self, policy: str, requests: Sequence[Request]) -> Simulation:
        """Set requests against the fleet, placed by a policy."""
        random = Random(self.seed)  # noqa: S311 - chance, not secrets
        if policy == OURS:
            ours = SchedulerDispatcher(self.machine, self.workers, self.waiting, random)
            return self._simulation(ours, None, requests)
        rule = POLICIES[policy](self.workers, self.machine.cache_blocks, random)
        fifo = FifoDispatcher(rule, slots=self.machine.slots, waiting=self.waiting)
        return self._simulation(fifo, rule, requests)

    def _simulation(
        self, dispatcher: Dispatcher, follower: CacheFollower | None, requests: Sequence[Request]
    ) -> Simulation:
        workers = [
            SimulatedWorker(self.machine, index=index, follower=follower)
            for index in range(self.workers)
        ]
        return Simulation(workers, dispatcher, requests, Random(~self.seed))  # noqa: S311


def capacity(fleet: Fleet, requests: Sequence[Request]) -> float:
    """Measure how many of these requests a second a fleet can carry.

    That is the highest rate at which the best policy, of all but ours, refuses no more than one
    request in a hundred; to within 2 %.

    Raises:
        TooFewError: there are too few requests to fill the fleet.
    """
    alone = sum(map(fleet.machine.alone_s, requests)) / len(requests)
    low = fleet.workers / alone
    high = 2 * low
    best_first = list(POLICIES)
    while _carries(fleet, at_rate(requests, high), best_first):
        if high > MOST_RATE:
            raise TooFewError(f"{len(requests)} requests do not fill {fleet.workers} workers")
        low, high = high, 2 * high
    while high > 1.02 * low:
        middle = math.sqrt(low * high)
        if _carries(fleet, at_rate(requests, middle), best_first):
            low = middle
        else:
            high = middle
    return low


def _carries(fleet: Fleet, requests: Sequence[Request], policies: list[str]) -> bool:
    """Tell whether any policy carries these requests; moves the one that does to the front."""
    for policy in policies:
        most = MOST_REFUSED * len(requests)
        simulation = fleet.simulation(policy, requests)
        simulation.run(most_refused=most)
        if simulation.refused <= most:
            policies.remove(policy)
            policies.insert(0, policy)
            return True
    return False


def compare(
    fleet: Fleet,
    requests: Sequence[Request],
    *,
    source: str,
    loads: Sequence[float],
    policies: Sequence[str],
) -> Iterator[Report]:
    """Run each policy at each load, which is a part of what the fleet can carry."""
    carries = capacity(fleet, requests)
    for load in loads:
        arriving = at_rate(requests, load * carries)
        for policy in policies:
            yield report(
                fleet.simulation(policy, arriving).run(),
                fleet.machine,
                policy=policy,
                source=source,
                workers=fleet.workers,
                load=load,
                rate=load * carries,
            )
