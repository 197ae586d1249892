"""Which workers are there, what each one says of itself, and when it is suspect or gone."""

import itertools
from collections import OrderedDict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from fastrun.v1.scheduler_pb2 import Heartbeat, WorkerCommand, WorkerHello, WorkerState
from fastrun.v1.worker_pb2 import Gpu, ModelCard
from scheduler import links
from scheduler.breaker import Breaker, BreakerPolicy
from scheduler.leases import Lease
from scheduler.load import Load
from scheduler.ports import WorkerLink
from scheduler.roster import Roster
from scheduler.weights import Weights

FENCED_REMEMBERED = 10_000


class FencedError(Exception):
    """Another process is this worker now, or this process is another worker already."""


@dataclass(slots=True, eq=False)
class Worker:
    """One process of a worker; times are monotonic seconds."""

    worker_id: str
    instance_id: str
    address: str
    model: str
    """Of its card, which takes longer to read; each request asks several times."""
    card: ModelCard
    slots: int
    link: WorkerLink | None
    """None while it has no session."""
    suspect_at: float
    """From then on it is chosen last, unless it says something before."""
    joined_at: float = 0.0
    """When it last said Hello."""
    left_at: float = 0.0
    """When its last session ended."""
    gone: bool = False
    draining: bool = False
    """It finishes what it runs and takes nothing new."""
    confirmed: bool = False
    """It has said Hello in this term; before, it is granted nothing, and may yet be."""
    turn: int = 0
    """Counts up over all workers: equals take turns, by who was granted longest ago."""
    held: int = 0
    """How many of its slots are held."""
    load: Load = field(default_factory=Load)
    standing_load: float = 0.0
    """In tokens, by which it stands in the order; see Fleet.load_of."""
    breaker: Breaker = field(default_factory=lambda: Breaker(BreakerPolicy()))
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    listed: frozenset[str] = frozenset()
    """Ids of the leases that it last said it runs."""
    listed_at: float = 0.0
    """When it said so."""
    version: str = ""
    """Of fastrun, as it says."""
    gpus: tuple[Gpu, ...] = ()
    """What it computes on, as it says."""
    certificate: str = ""
    """The name in it, by which it is known."""

    @property
    def takes_requests(self) -> bool:
        """Neither gone nor draining."""
        return not (self.gone or self.draining)

    def state(self, now: float) -> str:
        """Return `joining`, `serving`, `draining`, `failing`, `suspect` or `gone`."""
        if self.gone:
            return "gone"
        if self.suspect_at <= now:
            return "suspect"
        if self.draining:
            return "draining"
        if not self.confirmed:
            return "joining"
        return "failing" if self.breaker.opens_until is not None else "serving"

    def send(self, command: WorkerCommand) -> None:
        """Append to what it will be sent, if it has a session; never raises."""
        links.send(self.link, command)


class Fleet:
    """All workers, one process each, and all models that were ever served."""

    def __init__(
        self,
        *,
        suspect_after_s: float,
        gone_after_s: float,
        forget_after_s: float,
        breaker: BreakerPolicy | None = None,
        weights: Weights | None = None,
    ) -> None:
        """Begin without workers.

        Args:
            suspect_after_s: without a heartbeat for so long a worker is chosen last.
            gone_after_s: with its session ended for so long it takes no requests.
            forget_after_s: gone for so long it is forgotten.
            breaker: when a worker that fails is passed over.
            weights: what orders the workers of a model.
        """
        self._suspect_after_s = suspect_after_s
        self._gone_after_s = gone_after_s
        self._forget_after_s = forget_after_s
        self._breaker = breaker or BreakerPolicy()
        self.weights = weights or Weights()
        self._turns = itertools.count(1)
        self._workers: dict[str, Worker] = {}
        self._by_instance: dict[str, Worker] = {}
        self._rosters: dict[str, Roster] = {}
        self._empty = Roster(self.load_of)
        # In the order in which they left.
        self._away: dict[str, Worker] = {}
        self._gone: dict[str, Worker] = {}
        self._fenced: OrderedDict[str, None] = OrderedDict()
        self.cards: dict[str, ModelCard] = {}

    def workers(self) -> list[Worker]:
        """Return all workers, also those that are gone."""
        return list(self._workers.values())

    def connected(self) -> list[Worker]:
        """Return the workers that have a session."""
        return [worker for worker in self._workers.values() if worker.link is not None]

    def worker(self, worker_id: str) -> Worker | None:
        """Return a worker, unless it is unknown or has been forgotten."""
        return self._workers.get(worker_id)

    def roster(self, model: str) -> Roster:
        """Return the workers of a model that take requests; not to be changed."""
        return self._rosters.get(model, self._empty)

    def load_of(self, worker: Worker) -> float:
        """Return what a worker has to do, in tokens, when something last changed about it."""
        weights, load = self.weights, worker.load
        tokens = weights.backlog * load.settled_backlog + weights.context * load.context_tokens
        if worker.slots:
            tokens += weights.occupancy * worker.held / worker.slots
        scarce = load.kv_share + weights.kv_free_enough - 1
        if scarce > 0:
            tokens += weights.kv_pressure * scarce / weights.kv_free_enough
        return tokens

    def instance(self, instance_id: str) -> Worker | None:
        """Return a worker process, unless a newer one has replaced it."""
        return self._by_instance.get(instance_id)

    def barred(self, ids: AbstractSet[str]) -> AbstractSet[str]:
        """Return the ids of workers that must not be chosen; a process bars its worker while it is.

        Args:
            ids: of workers, and of processes, which may be no more.
        """
        if not ids:
            return ids
        running = {each: self._by_instance.get(each) for each in ids}
        return {worker.worker_id if worker else each for each, worker in running.items()}

    def slots(self, model: str) -> int:
        """Return how many slots the workers of a model have that take requests."""
        return self.roster(model).slots

    def ready(self, model: str) -> bool:
        """Tell whether a worker of this model takes requests."""
        return self.roster(model).ready()

    def join(
        self, hello: WorkerHello, link: WorkerLink, now: float
    ) -> tuple[Worker, Worker | None]:
        """Take in a worker that said Hello.

        Returns:
            The worker, and what it was before if it was there before: the same process, or an
            older one, which is fenced from now on.

        Raises:
            FencedError: this process has been replaced by another one that has a session, or
                goes by another worker's id already.
        """
        former = self._workers.get(hello.worker_id)
        if self._is_fenced(hello, former):
            raise FencedError(
                f"worker '{hello.worker_id}' runs in another process: "
                "stop one of them, or give it a worker id of its own"
            )
        self._fenced.pop(hello.instance_id, None)
        worker = Worker(
            worker_id=hello.worker_id,
            instance_id=hello.instance_id,
            address=hello.address,
            model=hello.model.model,
            card=hello.model,
            slots=hello.slots,
            link=link,
            version=hello.version,
            gpus=tuple(hello.gpus),
            suspect_at=now + self._suspect_after_s,
            joined_at=now,
            listed_at=now,
            turn=next(self._turns),
            breaker=Breaker(self._breaker),
        )
        if former is not None:
            self._remove(former)
            if former.instance_id == worker.instance_id:
                worker.heartbeat = former.heartbeat
                worker.draining = former.draining
                worker.turn, worker.held = former.turn, former.held
                worker.load, worker.breaker = former.load, former.breaker
            else:
                self._fence(former.instance_id)
        self._workers[worker.worker_id] = worker
        self._by_instance[worker.instance_id] = worker
        self._count(worker, now)
        self.cards[worker.model] = worker.card
        return worker, former

    def begin_term(self) -> None:
        """A new term has begun, or ours has ended: each worker is to say Hello in it."""
        for worker in self._workers.values():
            worker.confirmed = False
            self._count(worker, 0.0)

    def confirm(self, worker: Worker, now: float) -> None:
        """Note that a worker has said Hello in this term."""
        worker.confirmed = True
        self._count(worker, now)

    def beat(self, worker: Worker, heartbeat: Heartbeat, now: float) -> None:
        """Note a heartbeat."""
        worker.heartbeat = heartbeat
        worker.draining = heartbeat.state == WorkerState.WORKER_STATE_DRAINING
        worker.listed, worker.listed_at = frozenset(heartbeat.running_lease_ids), now
        worker.suspect_at = now + self._suspect_after_s
        worker.load.heard(heartbeat, now)
        self._count(worker, now)

    def leave(self, worker: Worker, now: float) -> None:
        """Note that the session of a worker has ended; until it is gone it is a suspect."""
        worker.link = None
        worker.left_at = now
        worker.suspect_at = now
        self._away[worker.worker_id] = worker
        self._count(worker, now)

    # What its leases do to a worker

    def forget_leases(self) -> None:
        """Begin with empty books: what is held is told anew, and no trial of a worker is known."""
        for worker in self._workers.values():
            worker.held = 0
            worker.load = Load()
            worker.breaker = Breaker(self._breaker)
            self._count(worker, 0.0)

    def lease_held(self, lease: Lease) -> None:
        """One more slot of a worker is held; it is behind its equals now."""
        if worker := self._by_instance.get(lease.instance_id):
            worker.held += 1
            worker.turn = next(self._turns)
            self._rosters[worker.model].recount(worker)

    def lease_ended(self, lease: Lease) -> None:
        """One slot of a worker less is held."""
        if worker := self._by_instance.get(lease.instance_id):
            worker.held -= 1
            self.done_with(worker, lease.lease_id)

    def tried(self, worker: Worker, lease_id: str, now: float) -> None:
        """Note that a request goes to a worker: to one that has failed, it is the only one."""
        if worker.breaker.opens_until is not None:
            worker.breaker.granted(lease_id)
            self._count(worker, now)

    def done_with(self, worker: Worker, lease_id: str) -> None:
        """Note that a request is at a worker no more, or never came to it."""
        worker.load.ended(lease_id)
        worker.breaker.ended(lease_id)
        self._rosters[worker.model].recount(worker)

    def succeeded(self, lease: Lease, now: float) -> None:
        """Note that the worker of a lease has answered its request."""
        if worker := self._by_instance.get(lease.instance_id):
            closed = worker.breaker.opens_until is None
            worker.breaker.succeeded(lease.lease_id)
            if not closed:
                self._count(worker, now)

    def failed(self, worker: Worker, lease_id: str, now: float) -> bool:
        """Note that a worker has failed a request; returns whether its breaker has opened."""
        closed = worker.breaker.opens_until is None
        worker.breaker.failed(lease_id, now)
        self._count(worker, now)
        return closed and worker.breaker.opens_until is not None

    def next_due(self) -> float | None:
        """Return when the next worker will be gone or forgotten, or may be tried again."""
        times = [worker.left_at + self._gone_after_s for worker in _first(self._away)]
        times += [worker.left_at + self._forget_after_s for worker in _first(self._gone)]
        dues = (roster.next_due() for roster in self._rosters.values())
        times += [due for due in dues if due is not None]
        return min(times, default=None)

    def expire(self, now: float) -> tuple[list[Worker], list[Worker]]:
        """Note who is gone by now, and forget who has been gone for long.

        Returns:
            Those that are gone from now on, and those that are forgotten.
        """
        gone = _due(self._away, self._gone_after_s, now)
        for worker in gone:
            worker.gone = True
            self._gone[worker.worker_id] = worker
            self._count(worker, now)
        forgotten = _due(self._gone, self._forget_after_s, now)
        for worker in forgotten:
            self._remove(worker)
        return gone, forgotten

    def reopened(self, now: float) -> list[str]:
        """Return the models of failing workers that may be tried since the last call."""
        return [model for model, roster in self._rosters.items() if roster.reopen(now)]

    def _count(self, worker: Worker, now: float) -> None:
        model = worker.model
        roster = self._rosters.get(model)
        if roster is None:
            roster = self._rosters[model] = Roster(self.load_of)
        roster.update(worker, now)

    def _remove(self, worker: Worker) -> None:
        del self._workers[worker.worker_id]
        del self._by_instance[worker.instance_id]
        self._rosters[worker.model].remove(worker)
        self._away.pop(worker.worker_id, None)
        self._gone.pop(worker.worker_id, None)

    def _is_fenced(self, hello: WorkerHello, former: Worker | None) -> bool:
        """Tell whether a Hello comes from a process that has been replaced.

        Instance ids have no order: the Hello of a process that is dead by now may have come after
        that of its successor, and replaced it. So the one that was replaced is heard again once
        the other has no session; what it runs is in its Hello.
        """
        known_as = self._by_instance.get(hello.instance_id)
        if known_as is not None:
            return known_as.worker_id != hello.worker_id
        return hello.instance_id in self._fenced and former is not None and former.link is not None

    def _fence(self, instance_id: str) -> None:
        self._fenced[instance_id] = None
        if len(self._fenced) > FENCED_REMEMBERED:
            self._fenced.popitem(last=False)


def _first(workers: dict[str, Worker]) -> list[Worker]:
    return [next(iter(workers.values()))] if workers else []


def _due(workers: dict[str, Worker], after_s: float, now: float) -> list[Worker]:
    """Take out those that left so long ago; they stand in the order in which they left."""
    taken = []
    for worker in list(workers.values()):
        if worker.left_at + after_s > now:
            break
        taken.append(workers.pop(worker.worker_id))
    return taken
