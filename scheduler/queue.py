"""Who waits for slots: the lines of all models, and when each wait ends.

All generations that one Acquire asks for stand at one place. Each time one of them gets a slot, the
place moves behind all of its account who wait by then: a request of many generations takes turns
with the others. A generation whose lease was refused comes back at a place of its own, also while
others of its request still wait at theirs.
"""

import heapq
import itertools
import math
from collections.abc import Iterable

import msgspec

from scheduler.line import Line
from scheduler.waiting import Waiting

_NOBODY = Line()
DEADLINES_CLEANED_FROM = 64


class Queue:
    """The lines of all models, with the deadlines of all that wait."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._by_edge: dict[str, dict[str, list[Waiting]]] = {}
        self._numbers = itertools.count(1)
        self._deadlines: list[tuple[float, int, Waiting]] = []
        """A heap. What has left the queue stays in it until its deadline, or until the next
        cleaning: those who give up at once must not fill the memory for as long as they might
        have waited."""
        self._clean_at = DEADLINES_CLEANED_FROM

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def next_number(self) -> int:
        """Return the number of the next place."""
        return next(self._numbers)

    def models(self) -> list[str]:
        """Return the models that somebody waits for."""
        return [model for model, line in self._lines.items() if line]

    def line(self, model: str) -> Line:
        """Return who waits for a model; not to be changed."""
        return self._lines.get(model, _NOBODY)

    def of_request(self, edge_id: str, request_id: str) -> list[Waiting]:
        """Return the places at which generations of a request wait."""
        return list(self._by_edge.get(edge_id, {}).get(request_id, ()))

    def has(self, waiting: Waiting) -> bool:
        """Tell whether something still waits at a place."""
        return waiting in self._by_edge.get(waiting.edge_id, {}).get(waiting.request_id, ())

    def of_edge(self, edge_id: str) -> list[Waiting]:
        """Return all places at which something waits for an edge."""
        requests = self._by_edge.get(edge_id, {})
        return [waiting for places in requests.values() for waiting in places]

    def add(self, waiting: Waiting) -> None:
        """Let generations of a request wait that wait nowhere yet."""
        self._line(waiting.model).add(waiting)
        requests = self._by_edge.setdefault(waiting.edge_id, {})
        requests.setdefault(waiting.request_id, []).append(waiting)
        if waiting.deadline < math.inf:
            self._expect(waiting)

    def charge(self, waiting: Waiting) -> None:
        """Let the account of a newcomer pay for a slot that it got without waiting."""
        self._line(waiting.model).charge(waiting)

    def take(self, waiting: Waiting, now: float) -> int:
        """End the wait of the next generation of a place, and return it; the others have begun.

        What was running before keeps its place: its client has seen a part of each generation.
        """
        generation = self._lines[waiting.model].take(waiting)
        if waiting.resume and waiting.generations:
            return generation
        self.remove(waiting)
        if waiting.generations:
            self.add_begun(waiting, now)
        return generation

    def add_begun(self, waiting: Waiting, now: float) -> None:
        """Let wait what is left of a request that has got a slot, behind its account's others.

        It has no deadline any more: the client is being answered, and to refuse the rest would
        only throw that away.
        """
        number = self.next_number()
        self.add(
            msgspec.structs.replace(
                waiting,
                front=False,
                begun=True,
                arrived_at=now,
                deadline=math.inf,
                number=number,
            )
        )

    def remove(self, waiting: Waiting) -> None:
        """End the wait of all that still wait at a place."""
        line = self._lines[waiting.model]
        line.remove(waiting)
        if not line and not line.has_history:
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
            if self.has(waiting):
                return deadline
            heapq.heappop(self._deadlines)
        return None

    def expired(self, now: float) -> Iterable[Waiting]:
        """Take out what has waited as long as it may, earliest first."""
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            _, _, waiting = heapq.heappop(self._deadlines)
            self.remove(waiting)
            yield waiting

    def _line(self, model: str) -> Line:
        line = self._lines.get(model)
        if line is None:
            line = self._lines[model] = Line()
        return line

    def _expect(self, waiting: Waiting) -> None:
        heapq.heappush(self._deadlines, (waiting.deadline, waiting.number, waiting))
        if len(self._deadlines) >= self._clean_at:
            self._deadlines = [each for each in self._deadlines if self.has(each[2])]
            heapq.heapify(self._deadlines)
            self._clean_at = max(DEADLINES_CLEANED_FROM, 2 * len(self._deadlines))
