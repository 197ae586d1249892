"""The real scheduler as a dispatcher: its sessions and all below them, told messages by hand."""

import itertools
import math
from random import Random

from fastrun.bench.placement.dispatch import Placement, Refusal, Waiting
from fastrun.bench.placement.trace import BLOCK_TOKENS, Request
from fastrun.bench.placement.workers import Machine, Report, Run
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import Usage
from fastrun.v1.scheduler_pb2 import (
    Acquire,
    EdgeHello,
    EdgeMessage,
    EdgeReply,
    Heartbeat,
    SlotFreed,
    WorkerCommand,
    WorkerHello,
    WorkerReport,
    WorkerState,
)
from fastrun.v1.worker_pb2 import ModelCard
from scheduler.config import Config
from scheduler.placement import KV_BLOCK_TOKENS
from scheduler.ports import Chance
from scheduler.sessions import Sessions

MODEL = "simulated"
MOST_PREFIX_HASHES = 256
ENGINE_BLOCKS = BLOCK_TOKENS // KV_BLOCK_TOKENS
# What edges reckon for an answer whose length nobody knows.
ANSWER_TOKENS = 1024


class _Recorder:
    """Wants to know nothing: the simulation counts by itself."""

    def granted(self, model: str, waited_s: float) -> None:
        """See scheduler.ports."""

    def rejected(self, reason: ErrorReason.ValueType) -> None:
        """See scheduler.ports."""

    def used(self, model: str, prompt_tokens: int, cached_tokens: int) -> None:
        """See scheduler.ports."""

    def failing(self, model: str) -> None:
        """See scheduler.ports."""


class _WorkerLink:
    certificate = ""

    def send(self, item: WorkerCommand) -> None:
        """Take no notice: nothing is voided here, and the term stays."""

    def close(self) -> None:
        """Take no notice."""


class _EdgeLink:
    certificate = ""

    def __init__(self) -> None:
        self.replies: list[EdgeReply] = []

    def send(self, item: EdgeReply) -> None:
        self.replies.append(item)

    def close(self) -> None:
        """Take no notice."""


class SchedulerDispatcher:
    """One scheduler, one edge, and a fleet that all serves one model."""

    def __init__(self, machine: Machine, workers: int, waiting: Waiting, random: Random) -> None:
        """Let the whole fleet join.

        Args:
            machine: what each worker is.
            workers: how many.
            waiting: how it is bounded.
            random: what the scheduler draws its lots with.
        """
        ids = itertools.count()
        chance = Chance(
            new_id=lambda: str(next(ids)),
            new_key=lambda: b"simulated",
            random=random.random,
            wall_clock=lambda: 0.0,
        )
        config = Config(queue_per_slot=waiting.per_slot, warm_up_s=0.0)
        self._timeout_ms = int(waiting.timeout_s * 1000)
        self._sessions = Sessions(config, now=0.0, chance=chance, recorder=_Recorder())
        self._edge = _EdgeLink()
        self._links = [_WorkerLink() for _ in range(workers)]
        self._requests: dict[str, Request] = {}
        self._leases: dict[int, str] = {}
        self._join(machine, term=0)
        # In the term that they were welcomed to, all say Hello again.
        self._join(machine, term=self._sessions.leader.term)
        self._sessions.tick(0.0)

    def _join(self, machine: Machine, *, term: int) -> None:
        edge = EdgeHello(edge_id="edge", term=term)
        self._sessions.of_edges.said(self._edge, EdgeMessage(hello=edge), 0.0)
        for index, link in enumerate(self._links):
            hello = WorkerHello(
                worker_id=str(index),
                instance_id=str(index),
                address="simulated:1",
                model=ModelCard(model=MODEL),
                slots=machine.slots,
                term=term,
            )
            self._sessions.of_workers.said(link, WorkerReport(hello=hello), 0.0)

    def take(self) -> list[Placement | Refusal]:
        """See Dispatcher."""
        replies, self._edge.replies = self._edge.replies, []
        decided: list[Placement | Refusal] = []
        for reply in replies:
            match reply.WhichOneof("item"):
                case "granted":
                    request = self._requests.pop(reply.granted.request_id)
                    self._leases[request.number] = reply.granted.lease_id
                    decided.append(Placement(request, int(reply.granted.worker_id)))
                case "rejected":
                    decided.append(Refusal(self._requests.pop(reply.rejected.request_id)))
        return decided

    def arrive(self, request: Request, now: float) -> None:
        """See Dispatcher."""
        self._requests[str(request.number)] = request
        hashes = request.blocks[:MOST_PREFIX_HASHES]
        acquire = Acquire(
            request_id=str(request.number),
            account_id=str(request.account),
            model=MODEL,
            queue_timeout_ms=self._timeout_ms,
            token_estimate=request.prompt_tokens + ANSWER_TOKENS,
            prompt_tokens=request.prompt_tokens,
            prefix_hashes=hashes,
            prefix_tokens=[BLOCK_TOKENS * count for count in range(1, len(hashes) + 1)],
        )
        self._sessions.of_edges.said(self._edge, EdgeMessage(acquire=acquire), now)

    def first_token(self, run: Run, worker: int, now: float) -> None:
        """See Dispatcher; tokens pass by the scheduler."""

    def finished(self, run: Run, worker: int, now: float) -> None:
        """See Dispatcher."""
        usage = Usage(
            prompt_tokens=run.request.prompt_tokens,
            cached_tokens=run.cached_tokens,
            completion_tokens=run.request.output_tokens,
        )
        freed = SlotFreed(lease_id=self._leases.pop(run.request.number), usage=usage)
        self._sessions.of_workers.said(self._links[worker], WorkerReport(slot_freed=freed), now)

    def heartbeat(self, report: Report, worker: int, now: float) -> None:
        """See Dispatcher."""
        heartbeat = Heartbeat(
            running_lease_ids=[self._leases[number] for number in report.running],
            state=WorkerState.WORKER_STATE_SERVING,
            waiting=report.waiting,
            kv_blocks_used=report.blocks_used * ENGINE_BLOCKS,
            kv_blocks_total=report.blocks_total * ENGINE_BLOCKS,
            prompt_tokens=report.prompt_tokens,
            cached_tokens=report.cached_tokens,
            prefill_tokens=report.prefill_tokens,
            context_tokens=report.context_tokens,
        )
        self._sessions.of_workers.said(self._links[worker], WorkerReport(heartbeat=heartbeat), now)

    def next_due(self) -> float:
        """See Dispatcher."""
        due = self._sessions.next_due()
        return math.inf if due is None else due

    def tick(self, now: float) -> None:
        """See Dispatcher."""
        self._sessions.tick(now)
