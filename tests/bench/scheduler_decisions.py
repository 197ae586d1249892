"""What a decision of the scheduler costs, in small fleets and in large ones, and what it keeps.

    PYTHONPATH=tests .venv/bin/python -m bench.scheduler_decisions

A decision is all that the scheduler does between an Acquire and its Granted, on one core, without
gRPC; time that the machine spends on other programs does not count, and garbage is collected as
often as there. Beside it stands a look at all workers, which is what decisions by a plain scan begin
with.
At 1,000 workers and 100,000 blocks in mind a decision should take 100 µs in the median, and memory
should stay flat over 1,000,000 requests that begin alike with no other.
"""

import argparse
import gc
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import structlog

from fastrun.v1.generation_pb2 import Usage
from fastrun.v1.scheduler_pb2 import Acquire, EdgeMessage, WorkerReport
from scheduler.__main__ import GC_THRESHOLDS
from scheduler.config import Config
from scheduler.fleet import Worker
from scheduler.ports import Chance
from scheduler.sessions import Sessions

MODEL = "m"
SLOTS = 32
BUSY = 0.7
"""So many of all slots are held while it is measured."""
BLOCKS = 16
BLOCK_TOKENS = 512
ENTRIES = 100_000
NOW = 100.0


class Link:
    """Keeps the last thing that was sent."""

    certificate = ""

    def __init__(self) -> None:
        self.last = None

    def send(self, item: object) -> None:
        """Keep it."""
        self.last = item

    def close(self) -> None:
        """Do nothing."""


class Desk:
    """A scheduler with workers and one edge."""

    def __init__(self, workers: int, *, entries: int) -> None:
        self.random = random.Random(1)
        chance = Chance(
            new_id=lambda: secrets.token_hex(16),
            new_key=lambda: b"k" * 32,
            random=self.random.random,
            wall_clock=time.time,
        )
        hear_nothing = dict.fromkeys(("granted", "rejected", "used", "failing"), lambda *_: None)
        recorder = SimpleNamespace(**hear_nothing)
        self.sessions = Sessions(
            Config(warm_up_s=0.0, prefix_index_entries=entries, suspect_after_s=1e9),
            now=NOW,
            chance=chance,
            recorder=recorder,
        )
        self.sessions.tick(NOW)
        self.admission = self.sessions.admission
        self.edge_link = Link()
        for number in range(workers):
            self._hello(
                self.sessions.of_workers.said,
                Link(),
                WorkerReport,
                worker_id=f"w{number}",
                instance_id=f"i{number}",
                address="host:7003",
                model={"model": MODEL},
                slots=SLOTS,
            )
        self._hello(self.sessions.of_edges.said, self.edge_link, EdgeMessage, edge_id="e")
        self.edge = self.sessions.edges.get("e")
        self.held: deque[tuple[Worker, str]] = deque()
        self.numbers = iter(range(10**12))

    def _hello(self, say: Callable[..., None], link: Link, item: type, **hello: object) -> None:
        """Say it in the scheduler's term."""
        for term in (0, self.sessions.leader.term):
            say(link, item(hello=hello | {"term": term}), NOW)

    def acquire(self, hashes: list[int]) -> float:
        """Let one request be granted; returns how many seconds it took."""
        acquire = Acquire(
            request_id=f"r{next(self.numbers)}",
            account_id="a",
            model=MODEL,
            queue_timeout_ms=10_000,
            token_estimate=9000,
            prefix_hashes=hashes,
            prefix_tokens=[BLOCK_TOKENS * (place + 1) for place in range(len(hashes))],
            prompt_tokens=BLOCK_TOKENS * len(hashes),
        )
        start = time.thread_time()
        self.admission.acquire(self.edge, acquire, NOW)
        took = time.thread_time() - start
        granted = self.edge_link.last.granted
        worker = self.sessions.fleet.instance(granted.instance_id)
        self.held.append((worker, granted.lease_id))
        return took

    def free(self) -> float:
        """Let the oldest request end; returns how many seconds it took."""
        worker, lease_id = self.held.popleft()
        usage = Usage(prompt_tokens=8192, cached_tokens=4096, completion_tokens=100)
        start = time.thread_time()
        self.admission.freed(worker, lease_id, usage, NOW)
        return time.thread_time() - start

    def prompts(self) -> Iterator[list[int]]:
        """Yield prompts of which each shares its first half with some that came before."""
        while True:
            topic = self.random.randrange(ENTRIES // BLOCKS)
            shared = [topic * 1000 + place for place in range(BLOCKS // 2)]
            yield shared + self.unique(BLOCKS // 2)

    def unique(self, blocks: int) -> list[int]:
        """Return blocks that no other prompt has."""
        return [self.random.getrandbits(64) for _ in range(blocks)]

    def scan(self) -> float:
        """Look at all workers once; returns how many seconds it took."""
        leases = self.admission.leases
        start = time.thread_time()
        min(
            (worker.suspect_at <= NOW, leases.held(worker.instance_id) / worker.slots, worker.turn)
            for worker in self.sessions.fleet.workers()
            if worker.takes_requests and leases.held(worker.instance_id) < worker.slots
        )
        return time.thread_time() - start


def measure(workers: int, count: int) -> None:
    """Print what decisions cost in a fleet of so many workers."""
    desk = Desk(workers, entries=ENTRIES)
    prompts, busy = desk.prompts(), int(BUSY * SLOTS * workers)
    while len(desk.admission.placement.index) < ENTRIES or len(desk.held) < busy:
        desk.acquire(next(prompts))
        if len(desk.held) > busy:
            desk.free()
    acquired, freed, scanned = [], [], []
    for _ in range(count):
        acquired.append(desk.acquire(next(prompts)))
        freed.append(desk.free())
        scanned.append(desk.scan())
    pairs = count / (sum(acquired) + sum(freed))
    name = f"{workers:5,} workers"
    print(f"{name}: acquire to granted {spread(acquired)}; freed {spread(freed)}")
    scan = median(scanned)
    ratio = (median(acquired) + scan) / median(acquired)
    print(f"{name}: {pairs:,.0f} pairs per second; a look at all {scan * 1e6:.1f} µs ({ratio:.2f})")


def keep(count: int) -> None:
    """Print what memory is in use while requests come that begin like no other."""
    desk = Desk(64, entries=200_000)
    first = 0.0
    for number in range(1, count + 1):
        desk.acquire(desk.unique(4))
        if len(desk.held) > BUSY * SLOTS * 64:
            desk.free()
        if number % max(count // 10, 1) == 0:
            used = memory_mib()
            first = first or used
            entries = len(desk.admission.placement.index)
            print(f"{number:10,} requests: {used:.0f} MiB, {entries:,} blocks in mind", flush=True)
    print(f"grew by {used - first:.1f} MiB since the first tenth")


def spread(took: list[float]) -> str:
    """Say median and 99th percentile in microseconds."""
    took = sorted(took)
    return f"p50 {median(took) * 1e6:.1f} µs, p99 {took[len(took) * 99 // 100] * 1e6:.1f} µs"


def median(took: list[float]) -> float:
    """Return the one in the middle."""
    return sorted(took)[len(took) // 2]


def memory_mib() -> float:
    """Return what is resident now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def main() -> None:
    """Read how much, and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=5_000)
    parser.add_argument("--acquisitions", type=int, default=1_000_000, help="0: memory is left out")
    told = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    gc.set_threshold(*GC_THRESHOLDS)
    for workers in (1, 64, 1000):
        measure(workers, told.decisions)
    if told.acquisitions:
        keep(told.acquisitions)


if __name__ == "__main__":
    main()
