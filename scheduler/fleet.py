"""Which workers are there, what each one says of itself, and when it is suspect or gone."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from fastrun.v1.scheduler_pb2 import Heartbeat, WorkerHello, WorkerState
from fastrun.v1.worker_pb2 import ModelCard
from scheduler.ports import WorkerLink

FENCED_REMEMBERED = 10_000


class FencedError(Exception):
    """Another process is this worker now, or this process is another worker already."""


@dataclass(slots=True, eq=False)
class Worker:
    """One process of a worker; times are monotonic seconds."""

    worker_id: str
    instance_id: str
    address: str
    card: ModelCard
    slots: int
    link: WorkerLink | None
    """None while it has no session."""
    suspect_at: float
    """From then on it is chosen last, unless it says something before."""
    left_at: float = 0.0
    """When its last session ended."""
    gone: bool = False
    draining: bool = False
    """It finishes what it runs and takes nothing new."""
    granted_at: float = 0.0
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    listed: frozenset[str] = frozenset()
    """Ids of the leases that it last said it runs."""

    @property
    def takes_requests(self) -> bool:
        """Neither gone nor draining."""
        return not (self.gone or self.draining)

    def state(self, now: float) -> str:
        """Return `serving`, `draining`, `suspect` or `gone`."""
        if self.gone:
            return "gone"
        if self.suspect_at <= now:
            return "suspect"
        return "serving" if self.takes_requests else "draining"


class Fleet:
    """All workers, one process each, and all models that were ever served."""

    def __init__(
        self, *, suspect_after_s: float, gone_after_s: float, forget_after_s: float
    ) -> None:
        self._suspect_after_s = suspect_after_s
        self._gone_after_s = gone_after_s
        self._forget_after_s = forget_after_s
        self._workers: dict[str, Worker] = {}
        self._by_instance: dict[str, Worker] = {}
        self._by_model: dict[str, dict[str, Worker]] = {}
        # In the order in which they left.
        self._away: dict[str, Worker] = {}
        self._gone: dict[str, Worker] = {}
        self._fenced: OrderedDict[str, None] = OrderedDict()
        self.cards: dict[str, ModelCard] = {}

    def workers(self) -> list[Worker]:
        """Return all workers, also those that are gone."""
        return list(self._workers.values())

    def of_model(self, model: str) -> Iterable[Worker]:
        """Return the workers of a model, also those that are gone."""
        return self._by_model.get(model, {}).values()

    def instance(self, instance_id: str) -> Worker | None:
        """Return a worker process, unless a newer one has replaced it."""
        return self._by_instance.get(instance_id)

    def slots(self, model: str) -> int:
        """Return how many slots the workers of a model have that take requests."""
        return sum(worker.slots for worker in self.of_model(model) if worker.takes_requests)

    def ready(self, model: str) -> bool:
        """Tell whether a worker of this model takes requests."""
        return any(worker.takes_requests for worker in self.of_model(model))

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
            card=hello.model,
            slots=hello.slots,
            link=link,
            suspect_at=now + self._suspect_after_s,
        )
        if former is not None:
            self._remove(former)
            if former.instance_id == worker.instance_id:
                worker.heartbeat = former.heartbeat
                worker.draining = former.draining
                worker.granted_at = former.granted_at
            else:
                self._fence(former.instance_id)
        self._workers[worker.worker_id] = worker
        self._by_instance[worker.instance_id] = worker
        self._by_model.setdefault(worker.card.model, {})[worker.worker_id] = worker
        self.cards[worker.card.model] = worker.card
        return worker, former

    def beat(self, worker: Worker, heartbeat: Heartbeat, now: float) -> None:
        """Note a heartbeat."""
        worker.heartbeat = heartbeat
        worker.draining = heartbeat.state == WorkerState.WORKER_STATE_DRAINING
        worker.listed = frozenset(heartbeat.running_lease_ids)
        worker.suspect_at = now + self._suspect_after_s

    def leave(self, worker: Worker, now: float) -> None:
        """Note that the session of a worker has ended; until it is gone it is a suspect."""
        worker.link = None
        worker.left_at = now
        worker.suspect_at = now
        self._away[worker.worker_id] = worker

    def next_due(self) -> float | None:
        """Return when the next worker will be gone or forgotten."""
        times = [worker.left_at + self._gone_after_s for worker in _first(self._away)]
        times += [worker.left_at + self._forget_after_s for worker in _first(self._gone)]
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
        forgotten = _due(self._gone, self._forget_after_s, now)
        for worker in forgotten:
            self._remove(worker)
        return gone, forgotten

    def _remove(self, worker: Worker) -> None:
        del self._workers[worker.worker_id]
        del self._by_instance[worker.instance_id]
        model = self._by_model[worker.card.model]
        del model[worker.worker_id]
        if not model:
            del self._by_model[worker.card.model]
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
