"""The workers of one model that take requests, kept in order of their load.

Each event about a worker moves that worker alone, so that no decision looks at all of them.
"""

import bisect
import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.fleet import Worker


class Tier(IntEnum):
    """Who comes before whom, whatever their load."""

    FIT = 0
    SUSPECT = 1
    """Used when no fit one has a slot."""
    FAILING = 2
    """Used when all workers are: a breaker must never stop a fleet."""


Entry = tuple[float, int, "Worker"]
"""Load, turn and who."""


@dataclass(slots=True, eq=False)
class _Standing:
    """How a worker was counted."""

    worker: "Worker"
    tier: Tier | None
    """None: it cannot be chosen yet."""
    suspect_at: float
    slots: int = 0
    free: int = 0
    """Of its slots."""
    entry: "Entry | None" = None
    """Where it stands in its tier; None without a free slot."""


class Roster:
    """The workers of one model; times are monotonic seconds."""

    def __init__(self, load: "Callable[[Worker], float]") -> None:
        """Begin without workers.

        Args:
            load: of a worker, in tokens; what it depends on changes only with an update().
        """
        self._load = load
        self._standings: dict[str, _Standing] = {}
        self._by_instance: dict[str, _Standing] = {}
        self._orders: tuple[list[Entry], list[Entry], list[Entry]] = ([], [], [])
        self._counts = [0, 0, 0]
        self._free = [0, 0, 0]
        # Fit ones in the order in which they become suspect.
        self._heard: dict[str, Worker] = {}
        self._failing: dict[str, Worker] = {}
        self._reopens_at = math.inf
        self._reopened = False
        self._most_excluded = 0
        self.slots = 0
        """Of all workers that take requests."""

    def ready(self) -> bool:
        """Tell whether a worker takes requests."""
        return bool(self._standings)

    def update(self, worker: "Worker", now: float) -> None:
        """Count a worker as it is now."""
        if not worker.takes_requests:
            self.remove(worker)
            return
        self._count(worker, self._tier(worker, now))

    def recount(self, worker: "Worker") -> None:
        """Count the load and the slots of a worker as they are now, if it is counted."""
        standing = self._standings.get(worker.worker_id)
        if standing is None or standing.worker is not worker or standing.tier is None:
            return
        self._leave_order(standing, standing.tier)
        self._enter_order(standing, standing.tier)
        if standing.tier is Tier.FAILING:
            self._reopens_at = min(self._reopens_at, worker.breaker.reopens_at)

    def remove(self, worker: "Worker") -> None:
        """Count a worker no more."""
        standing = self._standings.pop(worker.worker_id, None)
        if standing is None:
            return
        self._take_out(standing)
        del self._by_instance[standing.worker.instance_id]
        self._heard.pop(worker.worker_id, None)
        self._failing.pop(worker.worker_id, None)

    # What requests ask

    def possible(self, excluded: AbstractSet[str]) -> bool:
        """Tell whether any worker can take a request, now or once it has a free slot."""
        barred = sum(self._has_slots(worker_id) for worker_id in excluded)
        return self.slots > barred

    def free_slots(self, excluded: AbstractSet[str], now: float) -> int:
        """Count the slots that a request could get now, one after the other."""
        tiers = self.tiers(excluded, now)
        free = sum(map(self._free.__getitem__, tiers))
        for worker_id in excluded:
            standing = self._standings.get(worker_id)
            if standing is not None and standing.tier in tiers:
                free -= standing.free
        return free

    def scarcity(self) -> float:
        """Return how many slots there are for each that is free, while one is."""
        return self.slots / sum(self._free)

    def has_free_slot(self, now: float) -> bool:
        """Tell whether somebody who waits may find a free slot."""
        self._lapse(now)
        if self._orders[Tier.FIT] or self._orders[Tier.SUSPECT]:
            return True
        return bool(self._orders[Tier.FAILING]) and self._trusted() <= self._most_excluded

    def tiers(self, excluded: AbstractSet[str], now: float) -> tuple[Tier, ...]:
        """Return which tiers a request may be given to, best first."""
        self._lapse(now)
        trusted = self._trusted()
        if excluded:
            self._most_excluded = max(self._most_excluded, len(excluded))
            standings = map(self._standings.get, excluded)
            trusted -= sum(each is not None and each.tier in _TRUSTED for each in standings)
        return _TRUSTED if trusted else _ALL_FAIL

    def least_loaded(self, tier: Tier, most: int) -> "list[Worker]":
        """Return workers of a tier that have a free slot, the least loaded first."""
        return [worker for _, _, worker in self._orders[tier][:most]]

    def any_of(self, tier: Tier, random: float) -> "Worker | None":
        """Return a worker of a tier that has a free slot, by a number in [0, 1)."""
        order = self._orders[tier]
        return order[int(random * len(order))][2] if order else None

    def with_slot(self, instance_id: str, tier: Tier) -> "Worker | None":
        """Return a worker process if it is of a tier and has a free slot."""
        standing = self._by_instance.get(instance_id)
        if standing is None or standing.tier is not tier or not standing.free:
            return None
        return standing.worker

    # Time

    def next_due(self) -> float | None:
        """Return when a failing worker may be tried, or could have been."""
        if self._reopened:
            return 0.0
        return self._reopens_at if self._reopens_at < math.inf else None

    def reopen(self, now: float) -> bool:
        """Let failing workers be tried whose time has come.

        Returns:
            Whether there are any since the last call.
        """
        self._lapse(now)
        reopened, self._reopened = self._reopened, False
        return reopened

    def _lapse(self, now: float) -> None:
        """See what has come to pass with the time alone."""
        while self._heard:
            worker = next(iter(self._heard.values()))
            if worker.suspect_at > now:
                break
            self.update(worker, now)
        if now < self._reopens_at:
            return
        self._reopens_at = math.inf
        failing = tuple(self._failing.values())
        for worker in failing:
            self.update(worker, now)
        self._reopened |= len(self._failing) < len(failing)

    def _count(self, worker: "Worker", tier: Tier | None) -> None:
        former = self._standings.get(worker.worker_id)
        if former is not None:
            self._take_out(former)
            del self._by_instance[former.worker.instance_id]
        standing = _Standing(worker, tier, worker.suspect_at)
        self._standings[worker.worker_id] = standing
        self._by_instance[worker.instance_id] = standing
        self._put_in(standing)
        self._keep_time(standing, former)

    def _keep_time(self, standing: _Standing, former: _Standing | None) -> None:
        """Note what time alone will change about a worker."""
        worker, tier = standing.worker, standing.tier
        was = former.tier if former is not None else None
        if tier is Tier.FIT:
            if former is None or was is not tier or former.suspect_at != standing.suspect_at:
                self._heard.pop(worker.worker_id, None)
                self._heard[worker.worker_id] = worker
        elif was is Tier.FIT:
            del self._heard[worker.worker_id]
        if tier is Tier.FAILING:
            self._failing[worker.worker_id] = worker
            self._reopens_at = min(self._reopens_at, worker.breaker.reopens_at)
        elif was is Tier.FAILING:
            del self._failing[worker.worker_id]

    def _put_in(self, standing: _Standing) -> None:
        worker, tier = standing.worker, standing.tier
        standing.slots = worker.slots
        self.slots += worker.slots
        if tier is None:
            return
        self._counts[tier] += 1
        self._enter_order(standing, tier)

    def _take_out(self, standing: _Standing) -> None:
        self.slots -= standing.slots
        if standing.tier is None:
            return
        self._counts[standing.tier] -= 1
        self._leave_order(standing, standing.tier)

    def _enter_order(self, standing: _Standing, tier: Tier) -> None:
        worker = standing.worker
        free = worker.slots - worker.held
        if free > 0:
            standing.free = free
            self._free[tier] += free
            worker.standing_load = self._load(worker)
            # Turns differ: two entries are told apart before their workers would have to be.
            standing.entry = entry = (worker.standing_load, worker.turn, worker)
            bisect.insort(self._orders[tier], entry)

    def _leave_order(self, standing: _Standing, tier: Tier) -> None:
        if standing.entry is not None:
            self._free[tier] -= standing.free
            order = self._orders[tier]
            del order[bisect.bisect_left(order, standing.entry)]
            standing.free, standing.entry = 0, None

    def _tier(self, worker: "Worker", now: float) -> Tier | None:
        if not (worker.confirmed and worker.slots):
            return None
        if not worker.breaker.passes(now):
            return Tier.FAILING
        return Tier.SUSPECT if worker.suspect_at <= now else Tier.FIT

    def _trusted(self) -> int:
        return self._counts[Tier.FIT] + self._counts[Tier.SUSPECT]

    def _has_slots(self, worker_id: str) -> int:
        standing = self._standings.get(worker_id)
        return standing.slots if standing is not None else 0


_TRUSTED = (Tier.FIT, Tier.SUSPECT)
_ALL_FAIL = (Tier.FAILING,)
