"""Whose turn it is when several accounts wait: that of the account which has had least.

This is deficit round robin, weighted by tokens, in the form that serves first and is paid later. In
each round every account may use one token. It gets a slot as soon as it owes nothing, and then owes
what that slot costs: it is passed over for as many rounds as the request has tokens. An account
that waits with small requests gets many slots for the one that large requests get.

Rounds in which nobody's turn comes are skipped by arithmetic: an account is known by the round in
which it owes nothing any more, and the next turn is that of the lowest round. Within one account
the earliest goes first. So of two accounts that wait, neither gets more tokens than the other by
more than one request; and an account that comes to wait is in no later round than anybody, unless
it has just had a slot, whose price it still owes.

A slot is worth more to one than to another, for it is at a worker, which may hold the beginning of
a prompt. So whoever is first may be passed over for one that the slot suits better, within bounds:
by requests that came soon after it, and by those of other accounts until they have had as much more
as its own costs.
"""

import bisect
import math
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice

from scheduler.prefix_index import Prompt
from scheduler.waiting import Waiting

Key = tuple[int, float, int]
"""Round, and then who has waited longest."""

TOGETHER_S = 5.0
"""Requests that come within so many seconds have no order that must be kept."""
MOST_COMPARED = 32
"""So many are asked at most whether a slot suits them."""
FORGET_FROM = 64
MOST_COUNTED = 100
"""So many accounts are looked at for a position."""


class _Lane:
    """What waits for one account, earliest first; never empty, once it has a place."""

    __slots__ = ("_base", "_end", "_offsets", "account_id", "places")

    def __init__(self, account_id: str, round_: int) -> None:
        self.account_id = account_id
        self.places: list[Waiting] = []
        # The round of each place is its offset from the base; the last one's tokens are in the end.
        self._base = round_
        self._offsets: list[int] = []
        self._end = 0

    @property
    def round(self) -> int:
        """In which its next turn comes."""
        return self._base + self._offsets[0]

    @property
    def entry(self) -> "_Entry":
        return (*self.key(0), self)

    def key(self, index: int) -> Key:
        """When the turn of a place comes, if nothing else comes or goes."""
        return (self._base + self._offsets[index], *self.places[index].turn)

    def index(self, place: Waiting) -> int:
        if self.places[0] is place:
            return 0
        return bisect.bisect_left(self.places, place.turn, key=_turn)

    def add(self, place: Waiting) -> None:
        index = bisect.bisect_left(self.places, place.turn, key=_turn)
        self._offsets.insert(index, self._offsets[index] if index < len(self.places) else self._end)
        self.places.insert(index, place)
        self._shift(index + 1, place.tokens)

    def remove(self, place: Waiting) -> None:
        index = self.index(place)
        del self.places[index]
        del self._offsets[index]
        if index == 0:
            self._base -= place.tokens
        else:
            self._shift(index, -place.tokens)

    def charge(self, tokens: int) -> None:
        self._base += tokens

    def count_before(self, key: Key) -> int:
        """Count the places whose turn comes before another's."""
        count = bisect.bisect_left(self._offsets, key[0] - self._base)
        if count < len(self.places) and self.key(count) < key:
            count += 1
        return count

    def _shift(self, index: int, by: int) -> None:
        self._offsets[index:] = [each + by for each in self._offsets[index:]]
        self._end += by


_Entry = tuple[int, float, int, _Lane]


def _turn(place: Waiting) -> tuple[float, int]:
    return place.turn


class Crowd:
    """How many requests of each account may have to make way, and who has most."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._by_count: dict[int, dict[str, None]] = {}
        self.most = 0

    def count(self, account_id: str) -> int:
        """Return how many an account has."""
        return self._counts.get(account_id, 0)

    def largest(self) -> list[str]:
        """Return the accounts that have most."""
        return list(self._by_count.get(self.most, ()))

    def change(self, account_id: str, by: int) -> None:
        """Count one more, or one less."""
        before = self.count(account_id)
        after = before + by
        if before:
            self._by_count[before].pop(account_id)
            if not self._by_count[before]:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, {})[account_id] = None
            self._counts[account_id] = after
        else:
            self._counts.pop(account_id)
        if after > self.most or self.most not in self._by_count:
            self.most = after


class FairLine:
    """The places of those who wait for one model, of all accounts."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._order: list[_Entry] = []
        self._crowd = Crowd()
        self._size = 0
        # The round in which the last slot was given.
        self._round = 0
        # Until which round an account owes for the slots it got. What is past is forgotten.
        self._owing: dict[str, int] = {}
        self._forget_at = FORGET_FROM

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Waiting]:
        """Yield all places in the order of their turns, if nothing else comes or goes."""
        keyed = merge(*(_keyed(lane) for lane in self._lanes.values()))
        return (lane.places[index] for *_, lane, index in keyed)

    @property
    def accounts(self) -> int:
        """How many accounts wait."""
        return len(self._lanes)

    @property
    def has_history(self) -> bool:
        """Whether it would be unfair to forget what was given."""
        return bool(self._owing)

    def of_account(self, account_id: str) -> int:
        """Return how many places an account has."""
        lane = self._lanes.get(account_id)
        return len(lane.places) if lane else 0

    def head(self) -> Waiting | None:
        """Return whose turn it is."""
        return self._order[0][-1].places[0] if self._order else None

    def contenders(self) -> Iterator[Waiting]:
        """Yield whom the next slot may be for, the head first.

        Each account is passed over at most until another has had as much more as its next request
        costs, and nobody is by one that came more than TOGETHER_S later, or when half of the wait's
        time was over: else a large request would wait for as long as small ones keep coming, and be
        refused in the end.
        """
        limit = latest = math.inf
        for round_, *_, lane in self._order:
            if round_ > limit:
                return
            first = lane.places[0]
            limit = min(limit, round_ + first.tokens)
            half_time = (first.arrived_at + first.deadline) / 2
            latest = min(latest, first.arrived_at + TOGETHER_S, half_time)
            for place in lane.places:
                if place.arrived_at > latest:
                    break
                yield place

    def suited(self, loss: Callable[[Prompt], int]) -> Waiting | None:
        """Return whom a slot suits best, of the first contenders.

        Args:
            loss: what its prompt would lose by it, 0 or more. Of equals the first one gets it, so
                nobody is looked at behind one that loses nothing.
        """
        suited, least = None, math.inf
        for place in islice(self.contenders(), MOST_COMPARED):
            if (lost := loss(place.prompt)) < least:
                suited, least = place, lost
            if not lost:
                break
        return suited

    def add(self, place: Waiting) -> None:
        """Take in a place."""
        lane = self._lanes.get(place.account_id)
        if lane is None:
            lane = _Lane(place.account_id, self._round_of(place.account_id))
            self._lanes[place.account_id] = lane
        else:
            self._take_out(lane)
        lane.add(place)
        self._put_in(lane)
        self._size += 1
        if not place.begun:
            self._crowd.change(place.account_id, 1)

    def remove(self, place: Waiting) -> None:
        """Take out a place."""
        lane = self._lanes[place.account_id]
        self._take_out(lane)
        if len(lane.places) > 1:
            lane.remove(place)
            self._put_in(lane)
        else:
            del self._lanes[place.account_id]
            self._owe(place.account_id, lane.round)
        self._size -= 1
        if not place.begun:
            self._crowd.change(place.account_id, -1)

    def charge(self, account_id: str, tokens: int) -> None:
        """Note that an account got a slot, whether it waited or not, and what that costs."""
        round_ = self._round_of(account_id)
        lowest = self._order[0][0] if self._order else round_
        self._round = max(self._round, min(round_, lowest))
        if lane := self._lanes.get(account_id):
            self._take_out(lane)
            lane.charge(tokens)
            self._put_in(lane)
        else:
            self._owe(account_id, round_ + tokens)

    def count_before(self, place: Waiting) -> int:
        """Count the places whose turn comes before that of one of them.

        Where very many accounts have a turn before, some of them stand for all.
        """
        own = self._lanes[place.account_id]
        index = own.index(place)
        key = own.key(index)
        before = bisect.bisect_left(self._order, key)
        counted = self._order[: before : before // MOST_COUNTED + 1]
        others = sum(lane.count_before(key) for *_, lane in counted if lane is not own)
        return index + others * before // max(1, len(counted))

    def who_makes_way(self, account_id: str) -> Waiting | None:
        """Find whose place a newcomer may have when no more may wait.

        It is the newest one of the account with most, if the newcomer's account has fewer. Where
        that would only turn the two about, the one that has had less keeps the place: else accounts
        would throw one another out for as long as they come back.
        """
        few, most = self._crowd.count(account_id), self._crowd.most
        if few >= most:
            return None
        lane = max(
            (self._lanes[each] for each in self._crowd.largest()), key=lambda lane: lane.key(0)
        )
        if few + 1 == most and self._round_of(account_id) > lane.round:
            return None
        return next(place for place in reversed(lane.places) if not place.begun)

    def _round_of(self, account_id: str) -> int:
        """Return the round in which an account owes nothing any more."""
        lane = self._lanes.get(account_id)
        return lane.round if lane else max(self._round, self._owing.get(account_id, 0))

    def _owe(self, account_id: str, until: int) -> None:
        if until <= self._round:
            return
        self._owing[account_id] = until
        if len(self._owing) >= self._forget_at:
            self._owing = {
                each: until for each, until in self._owing.items() if until > self._round
            }
            self._forget_at = max(FORGET_FROM, 2 * len(self._owing))

    def _put_in(self, lane: _Lane) -> None:
        bisect.insort(self._order, lane.entry)

    def _take_out(self, lane: _Lane) -> None:
        del self._order[bisect.bisect_left(self._order, lane.entry)]


def _keyed(lane: _Lane) -> Iterator[tuple[int, float, int, _Lane, int]]:
    return ((*lane.key(index), lane, index) for index in range(len(lane.places)))
