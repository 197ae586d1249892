"""What an event costs the scheduler while very many wait, from very many accounts.

    PYTHONPATH=tests .venv/bin/python -m bench.waiting --waiting 10000 --accounts 1000

Drives the scheduler's decisions in this process, without gRPC. A grant, from a worker's word that a
slot is free to the Granted of who is next, should take less than 100 us.
"""

import argparse
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import structlog

from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.scheduler_pb2 import EdgeMessage, WorkerReport
from scheduler.config import Config
from scheduler.ports import Chance
from scheduler.sessions import Sessions

MODEL = "m"
PER_SLOT = 4


@dataclass(eq=False)
class Link:
    """One session; holds what its peer was sent last."""

    items: list[Any] = field(default_factory=list)
    certificate: str = ""

    def send(self, item: Any) -> None:
        """Keep it."""
        self.items.append(item)

    def close(self) -> None:
        """End."""

    def take(self, kind: str) -> list[Any]:
        """Return what was sent since the last call, of a kind."""
        items, self.items = self.items, []
        return [getattr(item, kind) for item in items if item.HasField(kind)]


class Nobody:
    """Wants to know nothing."""

    def granted(self, model: str, waited_s: float) -> None:
        """Ignore it."""

    def rejected(self, reason: ErrorReason.ValueType) -> None:
        """Ignore it."""

    def used(self, model: str, prompt_tokens: int, cached_tokens: int) -> None:
        """Ignore it."""

    def failing(self, model: str) -> None:
        """Ignore it."""


class Crowd:
    """A fleet whose slots are all held, and those who wait."""

    def __init__(self, *, waiting: int, accounts: int) -> None:
        self._random = Random(1)
        self._ids = itertools.count(1)
        self._accounts = [f"acct_{number}" for number in range(accounts)]
        self.now = 1000.0
        chance = Chance(
            new_id=lambda: f"id{next(self._ids)}",
            new_key=lambda: b"key",
            random=self._random.random,
            wall_clock=lambda: 1_800_000_000.0 + self.now,
        )
        slots = waiting // PER_SLOT
        self.sessions = Sessions(
            Config(warm_up_s=0.0, queue_per_slot=PER_SLOT),
            now=self.now,
            chance=chance,
            recorder=Nobody(),
        )
        self.sessions.tick(self.now)
        self.worker, self.edge = Link(), Link()
        term = self._say_hello(slots, term=0)
        self._say_hello(slots, term=term)
        self.leases = [self._acquire().lease_id for _ in range(slots)]
        for _ in range(waiting):
            self._acquire()

    def _say_hello(self, slots: int, *, term: int) -> int:
        said = {
            "worker_id": "w",
            "instance_id": "i",
            "address": "h:1",
            "model": {"model": MODEL},
            "slots": slots,
            "term": term,
        }
        self.sessions.of_workers.said(self.worker, WorkerReport(hello=said), self.now)
        message = EdgeMessage(hello={"edge_id": "e", "term": term})
        self.sessions.of_edges.said(self.edge, message, self.now)
        return term or self.edge.take("welcome")[-1].term

    def request(self) -> EdgeMessage:
        """One more that some account asks for."""
        return EdgeMessage(
            acquire={
                "request_id": f"r{next(self._ids)}",
                "account_id": self._random.choice(self._accounts),
                "model": MODEL,
                "queue_timeout_ms": 3_600_000,
                "token_estimate": self._random.randrange(50, 2000),
            }
        )

    def _acquire(self) -> Any:
        self.sessions.of_edges.said(self.edge, self.request(), self.now)
        return next(iter(self.edge.take("granted")), None)

    def free(self) -> float:
        """A slot becomes free; how long it took until it was granted, in seconds."""
        report = WorkerReport(slot_freed={"lease_id": self.leases.pop(0)})
        took = timed(lambda: self.sessions.of_workers.said(self.worker, report, self.now))
        (granted,) = self.edge.take("granted")
        self.leases.append(granted.lease_id)
        return took

    def come(self) -> tuple[float, str]:
        """One more asks; how long its answer took, and what it was."""
        message = self.request()
        took = timed(lambda: self.sessions.of_edges.said(self.edge, message, self.now))
        kinds = [item.WhichOneof("item") for item in self.edge.items]
        self.edge.items.clear()
        return took, "made way" if len(kinds) > 1 else kinds[0]

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self.sessions.admission.queue)

    def cancel(self) -> float:
        """One that waits gives up; how long that took."""
        line = list(self.sessions.admission.queue.line(MODEL))
        gone = self._random.choice(line)
        message = EdgeMessage(cancel={"request_id": gone.request_id})
        return timed(lambda: self.sessions.of_edges.said(self.edge, message, self.now))


def timed(event: Callable[[], None]) -> float:
    """Seconds of this thread that it took, whatever else the machine does."""
    began = time.thread_time()
    event()
    return time.thread_time() - began


def line(name: str, seconds: list[float]) -> str:
    """A row of the table."""
    if not seconds:
        return f"{name:<32} none"
    ordered = sorted(seconds)
    middle, late = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    return f"{name:<32} {len(seconds):>6} {middle * 1e6:>9.1f} {late * 1e6:>9.1f}"


def measure(crowd: Crowd, events: int) -> Iterator[str]:
    """Rows: grants, answers to newcomers by what they were, cancellations."""
    came: dict[str, list[float]] = {"queued": [], "rejected": [], "made way": []}
    freed = []
    for _ in range(events):
        freed.append(crowd.free())
        crowd.now += 0.001
        took, kind = crowd.come()
        came[kind].append(took)
        took, kind = crowd.come()
        came[kind].append(took)
    yield line("slot freed -> granted", freed)
    for kind, seconds in came.items():
        yield line(f"acquire -> {kind}", seconds)
    few = min(events, 200, crowd.waiting // 2)
    yield line("cancel", [crowd.cancel() for _ in range(few)])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--accounts", type=int, default=1_000)
    parser.add_argument("--events", type=int, default=2_000)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    crowd = Crowd(waiting=options.waiting, accounts=options.accounts)
    gc.collect()
    print(f"{options.waiting:,} waiting of {options.accounts:,} accounts")
    print(f"{'':<32} {'events':>6} {'p50 us':>9} {'p99 us':>9}")
    for row in measure(crowd, options.events):
        print(row, flush=True)


if __name__ == "__main__":
    main()
