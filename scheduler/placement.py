"""Which worker gets a request: of those that can take it, the least loaded."""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from scheduler.fleet import Worker


def choose(
    workers: Iterable[Worker],
    *,
    held: Callable[[str], int],
    excluded: AbstractSet[str],
    now: float,
) -> Worker | None:
    """Choose a worker with a free slot.

    A suspect worker is taken only when no other one has a slot. Among equally loaded ones it is
    the turn of the one whose last grant is longest ago.

    Args:
        workers: those that serve the model.
        held: how many slots of an instance are held.
        excluded: ids of workers that must not be chosen.
        now: monotonic seconds.

    Returns:
        None if no worker can take it now.
    """
    best: Worker | None = None
    best_rank: tuple[bool, float, float] | None = None
    for worker in workers:
        if not worker.takes_requests or worker.worker_id in excluded:
            continue
        in_use = held(worker.instance_id)
        if in_use >= worker.slots:
            continue
        rank = (worker.suspect_at <= now, in_use / worker.slots, worker.granted_at)
        if best_rank is None or rank < best_rank:
            best, best_rank = worker, rank
    return best


def free_slots(
    workers: Iterable[Worker],
    *,
    held: Callable[[str], int],
    excluded: AbstractSet[str],
    wanted: int,
) -> int:
    """Count the slots that choose() could give now, one after the other.

    Args:
        workers: those that serve the model.
        held: how many slots of an instance are held.
        excluded: ids of workers that must not be chosen.
        wanted: no more than these are counted.
    """
    free = 0
    for worker in workers:
        if worker.takes_requests and worker.worker_id not in excluded:
            free += max(worker.slots - held(worker.instance_id), 0)
            if free >= wanted:
                return wanted
    return free


def possible(workers: Iterable[Worker], excluded: AbstractSet[str]) -> bool:
    """Tell whether any worker can take a request, now or once it has a free slot."""
    return any(
        worker.takes_requests and worker.worker_id not in excluded and worker.slots
        for worker in workers
    )
