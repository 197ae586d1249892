"""Who waits for a slot, and whose turn it is: first come, first served, for each model."""

import bisect
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A request that waits for a slot; times are monotonic seconds."""

    edge_id: str
    request_id: str
    account_id: str
    model: str
    excluded: frozenset[str]
    """Ids of workers that must not be chosen."""
    front: bool
    """Goes before all that are not."""
    arrived_at: float
    """When it began to wait, at another scheduler perhaps."""
    asked_at: float
    """When it was asked for here."""
    deadline: float
    number: int
    """Counts up: tells apart what arrived together."""


def _turn(waiting: Waiting) -> tuple[bool, float, int]:
    return (not waiting.front, waiting.arrived_at, waiting.number)


class Line:
    """The requests that wait for one model, next one first."""

    def __init__(self) -> None:
        self._line: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._line)

    def add(self, waiting: Waiting) -> None:
        """Take a request in at its place."""
        bisect.insort(self._line, waiting, key=_turn)

    def remove(self, waiting: Waiting) -> None:
        """Take a request out."""
        del self._line[self._index(waiting)]

    def position(self, waiting: Waiting) -> int:
        """Return how many requests stand up to and with this one: 1 is next."""
        return self._index(waiting) + 1

    def _index(self, waiting: Waiting) -> int:
        return bisect.bisect_left(self._line, _turn(waiting), key=_turn)


_NOBODY = Line()


class Queue:
    """The lines of all models, with the deadlines of all that wait."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._by_edge: dict[str, dict[str, Waiting]] = {}
        # What has left the queue stays in this heap until its deadline.
        self._deadlines: list[tuple[float, int, Waiting]] = []

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def models(self) -> list[str]:
        """Return the models that somebody waits for."""
        return list(self._lines)

    def line(self, model: str) -> Line:
        """Return who waits for a model; not to be changed."""
        return self._lines.get(model, _NOBODY)

    def find(self, edge_id: str, request_id: str) -> Waiting | None:
        """Return a request that waits."""
        return self._by_edge.get(edge_id, {}).get(request_id)

    def of_edge(self, edge_id: str) -> list[Waiting]:
        """Return what waits for an edge."""
        return list(self._by_edge.get(edge_id, {}).values())

    def add(self, waiting: Waiting) -> int:
        """Let a request wait.

        Returns:
            Its position: 1 is next.
        """
        line = self._lines.setdefault(waiting.model, Line())
        line.add(waiting)
        self._by_edge.setdefault(waiting.edge_id, {})[waiting.request_id] = waiting
        heapq.heappush(self._deadlines, (waiting.deadline, waiting.number, waiting))
        return line.position(waiting)

    def remove(self, waiting: Waiting) -> None:
        """End the wait of a request."""
        line = self._lines[waiting.model]
        line.remove(waiting)
        if not line:
            del self._lines[waiting.model]
        requests = self._by_edge[waiting.edge_id]
        del requests[waiting.request_id]
        if not requests:
            del self._by_edge[waiting.edge_id]

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of all that wait."""
        while self._deadlines:
            deadline, _, waiting = self._deadlines[0]
            if self._waits(waiting):
                return deadline
            heapq.heappop(self._deadlines)
        return None

    def expired(self, now: float) -> Iterable[Waiting]:
        """Take out what has waited as long as it may, earliest first."""
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            _, _, waiting = heapq.heappop(self._deadlines)
            self.remove(waiting)
            yield waiting

    def _waits(self, waiting: Waiting) -> bool:
        return self.find(waiting.edge_id, waiting.request_id) is waiting
