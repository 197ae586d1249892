"""What stands between clients and simulated workers: a queue and a policy of others."""

import math
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from fastrun.bench.placement.policies import Policy
from fastrun.bench.placement.trace import Request
from fastrun.bench.placement.workers import Report, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How long and how many requests may wait, whatever the policy: the scheduler's defaults."""

    per_slot: float = 4.0
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Placement:
    """A request starts on a worker."""

    request: Request
    worker: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request is refused: the queue is full, or it has waited for too long."""

    request: Request


class Dispatcher(Protocol):
    """Decides where requests go and when; times are virtual seconds.

    What it decides gathers until it is taken.
    """

    def take(self) -> list[Placement | Refusal]:
        """Return what was decided since the last call."""

    def arrive(self, request: Request, now: float) -> None:
        """Take a request in."""

    def first_token(self, run: Run, worker: int, now: float) -> None:
        """Note that a prompt has been computed."""

    def finished(self, run: Run, worker: int, now: float) -> None:
        """Note that a request has ended, and its slot is free."""

    def heartbeat(self, report: Report, worker: int, now: float) -> None:
        """Note what a worker says of itself, once a second."""

    def next_due(self) -> float:
        """Return when tick() has something to do; infinite if it has not."""

    def tick(self, now: float) -> None:
        """Do what is due by now."""


class FifoDispatcher:
    """First come, first served, to whichever worker a policy chooses among those with a slot."""

    def __init__(self, policy: Policy, *, slots: int, waiting: Waiting) -> None:
        """Begin with an empty fleet.

        Args:
            policy: knows how many workers there are.
            slots: of each worker.
            waiting: how it is bounded.
        """
        self._policy = policy
        self._slots = slots
        self._bound = int(waiting.per_slot * slots * len(policy.running))
        self._timeout_s = waiting.timeout_s
        self._queue: deque[tuple[float, Request]] = deque()
        """With its deadline; the first to come is the first to go."""
        self._decided: list[Placement | Refusal] = []

    def take(self) -> list[Placement | Refusal]:
        """See Dispatcher."""
        decided, self._decided = self._decided, []
        return decided

    def arrive(self, request: Request, now: float) -> None:
        """See Dispatcher; while anybody waits no slot is free."""
        if free := self._free():
            self._place(request, free)
        elif len(self._queue) < self._bound:
            self._queue.append((now + self._timeout_s, request))
        else:
            self._decided.append(Refusal(request))

    def first_token(self, run: Run, worker: int, now: float) -> None:  # noqa: ARG002 - no clock here
        """See Dispatcher."""
        self._policy.first_token(run.request, worker)

    def finished(self, run: Run, worker: int, now: float) -> None:  # noqa: ARG002 - no clock here
        """See Dispatcher."""
        self._policy.finished(run.request, worker)
        while self._queue and (free := self._free()):
            _, request = self._queue.popleft()
            self._place(request, free)

    def heartbeat(self, report: Report, worker: int, now: float) -> None:
        """See Dispatcher; these policies go by what they see pass, which is newer."""

    def next_due(self) -> float:
        """See Dispatcher."""
        return self._queue[0][0] if self._queue else math.inf

    def tick(self, now: float) -> None:
        """See Dispatcher."""
        while self._queue and self._queue[0][0] <= now:
            _, request = self._queue.popleft()
            self._decided.append(Refusal(request))

    def _free(self) -> list[int]:
        running = self._policy.running
        return [worker for worker, count in enumerate(running) if count < self._slots]

    def _place(self, request: Request, free: list[int]) -> None:
        worker = self._policy.choose(request, free)
        self._policy.placed(request, worker)
        self._decided.append(Placement(request, worker))
