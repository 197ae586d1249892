"""Who waits for slots, and whose turn it is: first come, first served, for each model.

All generations that one Acquire asks for stand at one place. Each time one of them gets a slot, the
place moves behind all who wait by then: a request of many generations takes turns with the others.
A generation whose lease was refused comes back at a place of its own, also while others of its
request still wait at theirs.
"""

import bisect
import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A place in the queue; times are monotonic seconds."""

    edge_id: str
    request_id: str
    generations: deque[int]
    """Those of the request that still need a slot, next one first."""
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
    key_id: str = ""
    choices: int = 0
    """So many generations in a row have the same prompt."""


def _turn(waiting: Waiting) -> tuple[bool, float, int]:
    return (not waiting.front, waiting.arrived_at, waiting.number)


def _request(waiting: Waiting) -> tuple[str, str]:
    return (waiting.edge_id, waiting.request_id)


class Line:
    """The places of those that wait for one model, next one first."""

    def __init__(self) -> None:
        self._line: list[Waiting] = []
        self._places: Counter[tuple[str, str]] = Counter()
        self.slots = 0
        """How many slots they need in all."""

    @property
    def requests(self) -> int:
        """How many requests wait, each with one place or several."""
        return len(self._places)

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._line)

    def add(self, waiting: Waiting) -> None:
        """Take in a place."""
        bisect.insort(self._line, waiting, key=_turn)
        self._places[_request(waiting)] += 1
        self.slots += len(waiting.generations)

    def take(self, waiting: Waiting) -> int:
        """Take out the next generation of a place, and return it."""
        self.slots -= 1
        return waiting.generations.popleft()

    def remove(self, waiting: Waiting) -> None:
        """Take out a place with all that still wait there."""
        del self._line[self._index(waiting)]
        request = _request(waiting)
        self._places[request] -= 1
        if not self._places[request]:
            del self._places[request]
        self.slots -= len(waiting.generations)

    def position(self, waiting: Waiting) -> int:
        """Return how many places there are up to and with this one: 1 is next."""
        return self._index(waiting) + 1

    def _index(self, waiting: Waiting) -> int:
        return bisect.bisect_left(self._line, _turn(waiting), key=_turn)


_NOBODY = Line()


class Queue:
    """The lines of all models, with the deadlines of all that wait."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._by_edge: dict[str, dict[str, list[Waiting]]] = {}
        self._numbers = itertools.count(1)
        # What has left the queue stays in this heap until its deadline.
        self._deadlines: list[tuple[float, int, Waiting]] = []

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def next_number(self) -> int:
        """Return the number of the next place."""
        return next(self._numbers)

    def models(self) -> list[str]:
        """Return the models that somebody waits for."""
        return list(self._lines)

    def line(self, model: str) -> Line:
        """Return who waits for a model; not to be changed."""
        return self._lines.get(model, _NOBODY)

    def of_request(self, edge_id: str, request_id: str) -> list[Waiting]:
        """Return the places at which generations of a request wait."""
        return list(self._by_edge.get(edge_id, {}).get(request_id, ()))

    def of_edge(self, edge_id: str) -> list[Waiting]:
        """Return all places at which something waits for an edge."""
        requests = self._by_edge.get(edge_id, {})
        return [waiting for places in requests.values() for waiting in places]

    def add(self, waiting: Waiting) -> int:
        """Let generations of a request wait that wait nowhere yet.

        Returns:
            Its position: 1 is next.
        """
        line = self._lines.setdefault(waiting.model, Line())
        line.add(waiting)
        requests = self._by_edge.setdefault(waiting.edge_id, {})
        requests.setdefault(waiting.request_id, []).append(waiting)
        if waiting.deadline < math.inf:
            heapq.heappush(self._deadlines, (waiting.deadline, waiting.number, waiting))
        return line.position(waiting)

    def take(self, waiting: Waiting, now: float) -> int:
        """End the wait of the next generation of a place, and return it; the others have begun."""
        generation = self._lines[waiting.model].take(waiting)
        self.remove(waiting)
        if waiting.generations:
            self.add_begun(waiting, now)
        return generation

    def add_begun(self, waiting: Waiting, now: float) -> None:
        """Let wait what is left of a request that has got a slot, behind all who wait now.

        It has no deadline any more: the client is being answered, and to refuse the rest would
        only throw that away.
        """
        number = self.next_number()
        self.add(replace(waiting, front=False, arrived_at=now, deadline=math.inf, number=number))

    def remove(self, waiting: Waiting) -> None:
        """End the wait of all that still wait at a place."""
        line = self._lines[waiting.model]
        line.remove(waiting)
        if not line:
            del self._lines[waiting.model]
        requests = self._by_edge[waiting.edge_id]
        places = requests[waiting.request_id]
        places.remove(waiting)
        if not places:
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
        return waiting in self._by_edge.get(waiting.edge_id, {}).get(waiting.request_id, ())
