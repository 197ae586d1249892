"""What is seen of a worker that drains, until it has left. Pure."""

from dataclasses import dataclass

from fastrun.cli.fleet_view import GONE
from fastrun.v1.scheduler_pb2 import DrainWorkerResponse, WatchFleetResponse

LONGEST_S = 7 * 24 * 3600.0
"""The longest deadline that people may set."""
JOINING = "joining"


@dataclass(frozen=True, slots=True)
class Leaving:
    """How a worker has left."""

    worker_id: str
    ran: int
    """How many requests it ran when it began to drain."""
    moved: int
    back: bool
    """Another process of it is there already."""

    def __str__(self) -> str:
        where = "is back as a new process" if self.back else "has gone"
        return f"{self.worker_id} {where}: {requests(self.ran)} ran, {self.moved} moved"


class Watched:
    """Follows one worker from answer to answer."""

    def __init__(self, worker_id: str, begun: DrainWorkerResponse, *, restart: bool) -> None:
        """Begin.

        Args:
            worker_id: which.
            begun: what the scheduler has answered.
            restart: wait for a new process of it, too.
        """
        self._worker_id = worker_id
        self._begun = begun
        self._restart = restart
        self._moved = 0

    def see(self, answer: WatchFleetResponse) -> Leaving | None:
        """Look at the fleet; None while it has not left."""
        found = [each for each in answer.workers if each.worker_id == self._worker_id]
        for worker in found:
            if worker.instance_id == self._begun.instance_id:
                self._moved = worker.heartbeat.moved
                return self._left(back=False) if worker.state == GONE else None
            if worker.state not in (JOINING, GONE):
                return self._left(back=True)
        return None if found else self._left(back=False)

    def _left(self, *, back: bool) -> Leaving | None:
        if self._restart and not back:
            return None
        return Leaving(self._worker_id, self._begun.slots_in_use, self._moved, back)


def requests(count: int) -> str:
    """Say how many requests."""
    return f"{count} request" if count == 1 else f"{count} requests"
