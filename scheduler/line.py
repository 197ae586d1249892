"""Who waits for slots of one model, next one first.

Those that had a slot before go first: what was running and lost its worker, then what a worker
refused. All others take turns by account. Whoever excludes workers stands with the former, for it
was on a worker too; there, those that exclude the same ones stand together, since none of them can
be placed where the first of them cannot. So nobody is held up behind one that waits for another
worker, and the search for whom a free slot suits is short.
"""

import bisect
from collections import Counter
from collections.abc import Callable, Iterator

from scheduler.fairness import FairLine
from scheduler.prefix_index import Prompt
from scheduler.waiting import Waiting

_Rank = tuple[bool, bool, float, int]


def _rank(waiting: Waiting) -> _Rank:
    return (not waiting.resume, not waiting.front, *waiting.turn)


def _takes_turns(waiting: Waiting) -> bool:
    return not (waiting.came_back or waiting.excluded)


class Line:
    """The places of those that wait for one model."""

    def __init__(self) -> None:
        self._first: dict[frozenset[str], list[Waiting]] = {}
        """Those that go first, by the workers that they exclude."""
        self._firsts = 0
        self._fair = FairLine()
        self._places: Counter[tuple[str, str]] = Counter()
        self.slots = 0
        """How many slots they need in all."""

    @property
    def requests(self) -> int:
        """How many requests wait, each with one place or several."""
        return len(self._places)

    @property
    def has_history(self) -> bool:
        """Whether it would be unfair to forget this line once nobody waits in it."""
        return self._fair.has_history

    def __len__(self) -> int:
        return self._firsts + len(self._fair)

    def __iter__(self) -> Iterator[Waiting]:
        firsts = [each for places in self._first.values() for each in places]
        yield from sorted(firsts, key=_rank)
        yield from self._fair

    def heads(self) -> Iterator[Waiting]:
        """Yield whom the next slot is for: the first, or whoever follows if it may not be on it."""
        yield from sorted((places[0] for places in self._first.values()), key=_rank)
        if head := self._fair.head():
            yield head

    def suited(self, head: Waiting, loss: Callable[[Prompt], int]) -> Waiting:
        """Return who gets a slot that a head may have: itself, or one that takes turns with it.

        Args:
            head: one of them.
            loss: what a prompt would lose by that slot.
        """
        return (self._fair.suited(loss) if _takes_turns(head) else None) or head

    def add(self, waiting: Waiting) -> None:
        """Take in a place."""
        if _takes_turns(waiting):
            self._fair.add(waiting)
        else:
            bisect.insort(self._first.setdefault(waiting.excluded, []), waiting, key=_rank)
            self._firsts += 1
        self._places[_request(waiting)] += 1
        self.slots += len(waiting.generations)

    def charge(self, waiting: Waiting) -> None:
        """Let an account pay for a slot, unless it is for what it has paid for before."""
        if not waiting.came_back:
            self._fair.charge(waiting.account_id, waiting.tokens)

    def take(self, waiting: Waiting) -> int:
        """Take out the next generation of a place, and return it."""
        self.charge(waiting)
        self.slots -= 1
        return waiting.generations.popleft()

    def remove(self, waiting: Waiting) -> None:
        """Take out a place with all that still wait there."""
        if _takes_turns(waiting):
            self._fair.remove(waiting)
        else:
            places = self._first[waiting.excluded]
            del places[bisect.bisect_left(places, _rank(waiting), key=_rank)]
            if not places:
                del self._first[waiting.excluded]
            self._firsts -= 1
        request = _request(waiting)
        self._places[request] -= 1
        if not self._places[request]:
            del self._places[request]
        self.slots -= len(waiting.generations)

    def position(self, waiting: Waiting) -> int:
        """Return how many places have their turn up to and with this one: 1 is next.

        As it is now: whoever comes may have an earlier turn, and each generation that gets a slot
        lets its siblings wait on at a later one. Exact up to a hundred accounts, and nearly so
        beyond.
        """
        if _takes_turns(waiting):
            return self._firsts + self._fair.count_before(waiting) + 1
        rank = _rank(waiting)
        return 1 + sum(
            bisect.bisect_left(places, rank, key=_rank) for places in self._first.values()
        )

    def slots_before_another(self, account_id: str) -> int:
        """Estimate how many slots are given before one more request of an account gets one."""
        own = self._fair.of_account(account_id)
        others = self._fair.accounts - (own > 0)
        return min(self.slots, self._firsts + own + (own + 1) * others)

    def who_makes_way(self, account_id: str) -> Waiting | None:
        """Find whose place a newcomer may have when no more may wait."""
        return self._fair.who_makes_way(account_id)


def _request(waiting: Waiting) -> tuple[str, str]:
    return (waiting.edge_id, waiting.request_id)
