"""The event loop in virtual time: requests arrive, wait, run and end, each of them once."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from fastrun.bench.placement.dispatch import Dispatcher, Placement
from fastrun.bench.placement.trace import Request
from fastrun.bench.placement.workers import SimulatedWorker

HEARTBEAT_S = 1.0


@dataclass(slots=True)
class Served:
    """What became of a request; times are virtual seconds."""

    request: Request
    worker: int | None = None
    """None: it was refused."""
    placed_s: float = math.nan
    first_token_s: float = math.nan
    finished_s: float = math.nan
    """Or when it was refused."""
    cached_tokens: int = 0


class Simulation:
    """One fleet, one dispatcher, and requests that are all there before it begins."""

    def __init__(
        self,
        workers: Sequence[SimulatedWorker],
        dispatcher: Dispatcher,
        requests: Sequence[Request],
        random: Random,
    ) -> None:
        """Set the scene.

        Args:
            workers: idle.
            dispatcher: knows them by their numbers.
            requests: in the order of arrival.
            random: when each worker's heartbeat falls.
        """
        self._workers = workers
        self._dispatcher = dispatcher
        self._requests = requests
        self.served = [Served(request) for request in requests]
        self._open = len(requests)
        self.refused = 0
        self._wakes: list[tuple[float, int]] = []
        """When workers end a stride; the former end of one that was cut short means nothing."""
        self._beats = [(random.random() * HEARTBEAT_S, each) for each in range(len(workers))]
        heapq.heapify(self._beats)

    def run(self, *, most_refused: float = math.inf) -> list[Served]:
        """Go on until all requests have ended, or too many are refused, and return their fates."""
        arrivals = iter(self._requests)
        arrival = next(arrivals, None)
        while self._open and self.refused <= most_refused:
            arrives = arrival.arrives_s if arrival else math.inf
            wakes = self._wakes[0][0] if self._wakes else math.inf
            due = self._dispatcher.next_due()
            beats = self._beats[0][0]
            # What ends comes before what arrives at the same moment.
            now = min(wakes, due, arrives, beats)
            if now == wakes:
                self._wake(now)
            elif now == due:
                self._dispatcher.tick(now)
                assert self._dispatcher.next_due() > now, "what was due has been left undone"
            elif now == beats:
                self._beat(now)
            elif arrival:
                self._dispatcher.arrive(arrival, now)
                arrival = next(arrivals, None)
            self._apply(now)
        return self.served

    def _wake(self, now: float) -> None:
        _, index = heapq.heappop(self._wakes)
        worker = self._workers[index]
        if worker.wake_s != now:
            return
        progress = worker.advance()
        self._rouse(index)
        for run in progress.first_token:
            served = self.served[run.request.number]
            served.first_token_s = now
            served.cached_tokens = run.cached_tokens
            self._dispatcher.first_token(run, index, now)
        for run in progress.finished:
            self._end(run.request, now)
            self._dispatcher.finished(run, index, now)

    def _beat(self, now: float) -> None:
        _, index = heapq.heapreplace(
            self._beats, (self._beats[0][0] + HEARTBEAT_S, self._beats[0][1])
        )
        self._dispatcher.heartbeat(self._workers[index].report(now), index, now)

    def _apply(self, now: float) -> None:
        for decided in self._dispatcher.take():
            if isinstance(decided, Placement):
                served = self.served[decided.request.number]
                assert served.worker is None, "placed twice"
                served.worker = decided.worker
                served.placed_s = now
                self._workers[decided.worker].start(decided.request, now)
                self._rouse(decided.worker)
            else:
                self._end(decided.request, now)
                self.refused += 1

    def _rouse(self, index: int) -> None:
        wake = self._workers[index].wake_s
        if wake is not None:
            heapq.heappush(self._wakes, (wake, index))

    def _end(self, request: Request, now: float) -> None:
        served = self.served[request.number]
        assert math.isnan(served.finished_s), "ended twice"
        served.finished_s = now
        self._open -= 1
