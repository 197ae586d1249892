"""Which worker gets a request: the one where it costs the fewest tokens of work to begin.

A cost is what is left of the prompt after what the worker has cached, and what is before it there:
prompts that wait to be processed, contexts that run, memory that runs out. Compared are the
workers that hold a beginning of the prompt, the least loaded ones and a few at random, so that a
decision costs the same in any fleet. The fewer slots are free, the more counts what is cached: what
is computed twice keeps others waiting then. A suspect worker is taken only if no other has a slot.

To drive it without a scheduler, as simulations do: a Fleet with its Weights, a LeaseBook that tells
this Placement of its leases, then for each request

    worker = placement.choose(model, prompt, excluded, now)
    placement.granted(worker, lease.lease_id, prompt, now)
    leases.grant(lease, slots=worker.slots)

and at its end `placement.ran(lease, usage, now)` before `leases.free(...)`; heartbeats go to
`fleet.beat()`. An Admission does all of that itself. Nothing here keeps time or makes chance.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from fastrun.v1.generation_pb2 import Usage
from scheduler.fleet import Fleet, Worker
from scheduler.leases import Lease, LeaseState
from scheduler.load import Work
from scheduler.prefix_index import PrefixIndex, Promise, Prompt
from scheduler.roster import Roster, Tier

KV_BLOCK_TOKENS = 32
"""What engines keep in one block of memory, mostly; a cache that proves smaller is found out."""


class Placement:
    """Chooses workers and keeps in mind what they got; times are monotonic seconds."""

    def __init__(self, fleet: Fleet, *, entries: int, random: Callable[[], float]) -> None:
        """Begin with nothing in mind.

        Args:
            fleet: who is there; its weights say what counts.
            entries: how many blocks of prompts are kept in mind, each at one worker.
            random: uniform in [0, 1).
        """
        self._fleet = fleet
        self._weights = fleet.weights
        self._random = random
        self.index = PrefixIndex(entries=entries)
        self._promises: dict[str, Promise] = {}
        fleet.forget_leases()

    def choose(
        self, model: str, prompt: Prompt, excluded: AbstractSet[str], now: float
    ) -> Worker | None:
        """Choose a worker with a free slot.

        Args:
            model: that it has to serve.
            prompt: what is known of it.
            excluded: ids of workers that must not be chosen.
            now: monotonic seconds.

        Returns:
            None if no worker can take it now.
        """
        roster = self._fleet.roster(model)
        for tier in roster.tiers(excluded, now):
            workers = self._compared(roster, tier, model, prompt, excluded)
            if len(workers) == 1:
                return workers[0]
            if workers:
                return self._best(workers, prompt, roster.scarcity(), now)
        return None

    def loss(self, worker: Worker, prompt: Prompt) -> int:
        """Return how many tokens of a prompt a worker would compute that another one has cached."""
        return self.index.lost_tokens(worker.instance_id, worker.model, prompt)

    # What becomes of requests

    def granted(self, worker: Worker, lease_id: str, prompt: Prompt, now: float) -> None:
        """Keep in mind what a worker is about to get; its lease is held next."""
        if blocks := worker.heartbeat.kv_blocks_total:
            self.index.bound(worker.instance_id, worker.model, blocks * KV_BLOCK_TOKENS)
        promise = self.index.place(worker.instance_id, worker.model, prompt)
        cached = 0
        if promise is not None:
            cached = prompt.tokens_of(promise.blocks)
            self._promises[lease_id] = promise
        worker.load.granted(lease_id, Work(prompt.tokens - cached, prompt.tokens), now)
        self._fleet.tried(worker, lease_id, now)

    def not_granted(self, worker: Worker, lease_id: str) -> None:
        """Put out of mind what a worker does not get, whose lease could not be held after all."""
        self._withdraw(lease_id)
        self._fleet.done_with(worker, lease_id)

    def ran(self, lease: Lease, usage: Usage | None, now: float) -> None:
        """Learn from how a request ended, before its lease does.

        Args:
            lease: still held.
            usage: of it; None if it never ran.
            now: monotonic seconds.
        """
        if usage is None or not (usage.completion_tokens and usage.prompt_tokens):
            return
        if promise := self._promises.pop(lease.lease_id, None):
            self.index.settle(promise, usage.cached_tokens / usage.prompt_tokens)
        # A lease in doubt may have been lost: its worker has not shown that it can serve.
        if lease.state is not LeaseState.VOIDING:
            self._fleet.succeeded(lease, now)

    def lease_held(self, lease: Lease) -> None:
        """One more slot is held; see LeaseBook."""
        self._fleet.lease_held(lease)

    def lease_ended(self, lease: Lease) -> None:
        """One slot less is held; see LeaseBook."""
        self._withdraw(lease.lease_id)
        self._fleet.lease_ended(lease)

    def end_instance(self, instance_id: str) -> None:
        """Forget what a worker process had cached that is no more."""
        self.index.end_instance(instance_id)

    def _withdraw(self, lease_id: str) -> None:
        if promise := self._promises.pop(lease_id, None):
            self.index.settle(promise, None)

    # How it is chosen

    def _compared(
        self,
        roster: Roster,
        tier: Tier,
        model: str,
        prompt: Prompt,
        excluded: AbstractSet[str],
    ) -> list[Worker]:
        weights, random = self._weights, self._random
        first = roster.least_loaded(tier, weights.least_loaded + len(excluded))
        if excluded:
            first = [each for each in first if each.worker_id not in excluded]
        if len(first) < weights.least_loaded:
            return first
        others = [roster.any_of(tier, random()) for _ in range(weights.at_random)]
        if prompt.hashes:
            holders = self.index.holders(model, prompt, most=weights.holders, random=random())
            others += [roster.with_slot(instance_id, tier) for instance_id in holders]
        found = dict.fromkeys(first[: weights.least_loaded])
        for other in others:
            if other is not None and other.worker_id not in excluded:
                found[other] = None
        return list(found)

    def _best(self, workers: list[Worker], prompt: Prompt, scarcity: float, now: float) -> Worker:
        """Return the cheapest, of equals one of two taken at random: the less loaded."""
        costs = self._costs(workers, prompt, scarcity, now)
        limit = min(costs) + self._weights.tie_tokens
        equals = [worker for worker, cost in zip(workers, costs, strict=True) if cost <= limit]
        if len(equals) == 1:
            return equals[0]
        first = int(self._random() * len(equals))
        second = (first + 1 + int(self._random() * (len(equals) - 1))) % len(equals)
        return min(equals[first], equals[second], key=_share_held)

    def _costs(
        self, workers: list[Worker], prompt: Prompt, scarcity: float, now: float
    ) -> list[float]:
        """Return what a request would cost at workers with a free slot, in tokens."""
        weights = self._weights
        prefill = weights.prefill * scarcity
        cached = self.index.cached_tokens([worker.instance_id for worker in workers], prompt)
        costs = []
        for worker, tokens in zip(workers, cached, strict=True):
            load = worker.load
            # All of the prompt costs the same everywhere: what is cached makes the difference.
            cost = worker.standing_load - prefill * tokens
            if load.prefill_rate:
                cost -= weights.backlog * (load.settled_backlog - load.backlog(now))
            costs.append(cost)
        return costs


def _share_held(worker: Worker) -> tuple[float, int]:
    return (worker.held / worker.slots, worker.turn)
