"""Who has used what they may for now: limits of accounts and keys, held against each request.

A request is charged when it is let in: one request, and the tokens that it may use. A worker's word
about what it did use settles that; what it did not use is given back at its end, and all of it when
it never ran. It counts as concurrent while it waits for a slot or holds one, however many
generations it has. All limits are checked before any is charged, so that a refusal charges none.

Pure: whoever calls says what has happened, and when, in monotonic seconds.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from fastrun.v1.generation_pb2 import Usage
from fastrun.v1.scheduler_pb2 import Acquire, RateLimit
from scheduler.leases import Lease
from scheduler.meters import (
    REQUESTS,
    TOKENS,
    UNLIMITED,
    Ceiling,
    Meter,
    Meters,
    Reached,
    milliseconds,
)
from scheduler.months import Calendar
from scheduler.windows import WINDOW_S, Cell, Window

# A request that failed on a worker may be asked for again, and must not be charged twice.
ENDED_REMEMBERED_S = WINDOW_S
ENDED_REMEMBERED = 100_000


class _Share(msgspec.Struct, eq=False):
    """What one request has charged to one meter."""

    meter: Meter
    charged: int = 0
    cell: Cell | None = None
    """Where; None: nothing was set aside."""

    def charge(self, estimate: int, now: float) -> None:
        """Count one request, and set aside what it may use."""
        self.charged = self.meter.reservation(estimate)
        self.cell = self.meter.window.add(1, self.charged, now)

    def use(self, used: int, now: float) -> None:
        """See that what was used in all is charged."""
        if used > self.charged:
            self.meter.window.add(0, used - self.charged, now)
            self.charged = used

    def give_back(self, used: int, now: float) -> None:
        """Take back what was set aside and not used."""
        if used < self.charged and self.cell is not None:
            self.meter.window.take_back(self.cell, 0, self.charged - used, now)
            self.charged = used

    def undo(self, now: float) -> None:
        """Take back all of it."""
        if self.cell is not None:
            self.meter.window.take_back(self.cell, 1, self.charged, now)
            self.charged = 0


class _Request(msgspec.Struct, eq=False):
    """A request that was let in."""

    shares: tuple[_Share, ...]
    choices: int
    """So many generations in a row have the same prompt; at least 1."""
    reserved: int = 0
    """Tokens that it may use and has not told of."""
    used: int = 0
    prompts: set[int] = set()
    """Those that have been counted."""
    answers: dict[int, int] = {}
    """Tokens of each generation's answer; one that is resumed elsewhere tells its sum."""
    ran: bool = False
    is_over: bool = False
    """Whoever asked wants nothing more of it."""
    ended_at: float = 0.0

    def begin(self) -> None:
        self.is_over = False
        for share in self.shares:
            share.meter.in_flight += 1
            share.meter.reserved += self.reserved

    def end(self) -> None:
        for share in self.shares:
            share.meter.in_flight -= 1
            share.meter.reserved -= self.reserved
        self.reserved = 0

    def use(self, generation: int, usage: Usage, now: float) -> None:
        self.ran = True
        tokens = max(0, usage.completion_tokens - self.answers.get(generation, 0))
        self.answers[generation] = usage.completion_tokens
        prompt = generation // self.choices
        if prompt not in self.prompts:
            self.prompts.add(prompt)
            tokens += usage.prompt_tokens
        self.used += tokens
        told = min(tokens, self.reserved)
        self.reserved -= told
        for share in self.shares:
            share.use(self.used, now)
            share.meter.month.settle(tokens)
            share.meter.reserved -= told


class Limits:
    """The counters of all accounts and keys, and the requests that they count."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        """Begin with nothing used.

        Args:
            wall_clock: seconds since 1970, for months.
        """
        calendar = Calendar(wall_clock)
        self._accounts = Meters(calendar)
        self._keys = Meters(calendar)
        self._in_flight: dict[str, _Request] = {}
        # In the order in which they ended.
        self._ended: OrderedDict[str, _Request] = OrderedDict()

    def in_flight(self) -> set[str]:
        """Return the ids of all requests that count as concurrent."""
        return set(self._in_flight)

    def why_refused(self, acquire: Acquire, now: float) -> Reached | None:
        """Find the limit that a request is refused for: that which opens last.

        One that is in flight already passes, and one that comes back from a worker: which refused
        it, moved it, or died with it. One that stopped waiting because its edge lost the way to us
        was charged then, and only must not make a crowd.
        """
        # One that comes back tells what its edge knew when it came: perhaps of the month before.
        is_new = not (acquire.front or acquire.resume or acquire.request_id in self._in_flight)
        meters = self._touch(acquire, now, is_new=is_new)
        limited = [meter for meter in meters if meter.ceiling is not UNLIMITED]
        if not (is_new and limited):
            return None
        was_charged, estimate = acquire.request_id in self._ended, acquire.token_estimate
        reached = [
            each
            for meter in limited
            for each in (meter.crowded() if was_charged else meter.reached(estimate, now))
        ]
        return max(reached, key=lambda each: each.opens_in_s, default=None)

    def let_in(self, acquire: Acquire, now: float) -> None:
        """Charge a request that gets a slot or a place in the queue, unless it was charged."""
        request_id = acquire.request_id
        if request := self._in_flight.get(request_id):
            request.is_over = False
            return
        request = self._ended.pop(request_id, None)
        if request is None:
            meters = self._meters(acquire.account_id, acquire.key_id)
            request = _request(meters, acquire.choices)
            request.reserved = estimate = acquire.token_estimate
            for share in request.shares:
                share.charge(estimate, now)
        self._begin(request_id, request)

    def hold(self, lease: Lease, now: float) -> None:
        """Count a request that a worker runs; of one that nobody knows nothing is charged yet."""
        if not lease.request_id or lease.request_id in self._in_flight:
            return
        request = self._ended.pop(lease.request_id, None) or self._unknown(lease, now)
        self._begin(lease.request_id, request)

    def use(self, lease: Lease, usage: Usage, now: float) -> None:
        """Settle what a worker says that a generation used."""
        request = self._in_flight.get(lease.request_id) or self._ended.get(lease.request_id)
        if request is None:
            if not lease.request_id:
                return
            request = self._unknown(lease, now)
            self._remember(lease.request_id, request, now)
        request.use(lease.generation, usage, now)

    def left(self, request_id: str, now: float, *, over: bool, last: bool) -> None:
        """Note that a part of a request waits no longer, or holds no slot any more.

        Args:
            request_id: of which.
            now: monotonic seconds.
            over: it was refused, cancelled, or given back before its Start: nothing of it runs.
            last: nothing of it is left.
        """
        request = self._in_flight.get(request_id) or self._ended.get(request_id)
        if request is None:
            return
        request.is_over |= over
        if not last:
            return
        if self._in_flight.pop(request_id, None):
            request.end()
        if request.is_over and not request.ran:
            self._ended.pop(request_id, None)
            for share in request.shares:
                share.undo(now)
            return
        if request.ran:
            for share in request.shares:
                share.give_back(request.used, now)
        self._remember(request_id, request, now)

    def tell(self, figures: RateLimit, account_id: str, key_id: str, now: float) -> None:
        """Say how much is left of the tighter of the account's and the key's limits per minute.

        Args:
            figures: to be filled in; where there is no limit it stays as it is.
            account_id: whose.
            key_id: whose.
            now: monotonic seconds.
        """
        requests: _Left | None = None
        tokens: _Left | None = None
        for meter in self._meters(account_id, key_id):
            ceiling, window = meter.ceiling, meter.window
            window.lapse(now)
            requests = _tighter(requests, ceiling.requests, window.requests, window)
            tokens = _tighter(tokens, ceiling.tokens, window.tokens, window)
        if requests is not None:
            figures.remaining_requests, figures.limit_requests, window = requests
            figures.reset_requests_ms = milliseconds(window.empty_in_s(REQUESTS, now))
        if tokens is not None:
            figures.remaining_tokens, figures.limit_tokens, window = tokens
            figures.reset_tokens_ms = milliseconds(window.empty_in_s(TOKENS, now))

    def _touch(self, acquire: Acquire, now: float, *, is_new: bool) -> tuple[Meter, ...]:
        """Bring the meters of a request up to date with what its edge was told."""
        account = self._accounts.touch(acquire.account_id, now)
        month = acquire.account_month_tokens if is_new else None
        account.heed(Ceiling.of(acquire.account_limits), month)
        if not acquire.key_id:
            return (account,)
        key = self._keys.touch(acquire.key_id, now)
        month = acquire.key_month_tokens if is_new else None
        key.heed(Ceiling.of(acquire.key_limits), month)
        return (account, key)

    def _meters(self, account_id: str, key_id: str) -> list[Meter]:
        meters = (self._accounts.get(account_id), self._keys.get(key_id))
        return [meter for meter in meters if meter is not None]

    def _unknown(self, lease: Lease, now: float) -> _Request:
        """Make up for a request that was let in by another scheduler, or long ago."""
        meters = [self._accounts.touch(lease.account_id, now)]
        if lease.key_id:
            meters.append(self._keys.touch(lease.key_id, now))
        return _request(meters, lease.choices)

    def _begin(self, request_id: str, request: _Request) -> None:
        self._in_flight[request_id] = request
        request.begin()

    def _remember(self, request_id: str, request: _Request, now: float) -> None:
        request.ended_at = now
        self._ended[request_id] = request
        self._ended.move_to_end(request_id)
        while self._ended:
            oldest = next(iter(self._ended))
            is_fresh = now - self._ended[oldest].ended_at < ENDED_REMEMBERED_S
            if is_fresh and len(self._ended) <= ENDED_REMEMBERED:
                return
            del self._ended[oldest]


def _request(meters: Iterable[Meter], choices: int) -> _Request:
    return _Request(tuple(map(_Share, meters)), max(1, choices))


_Left = tuple[int, int, Window]
"""What is left of a limit, the limit, and where it is counted."""


def _tighter(former: _Left | None, limit: int | None, used: int, window: Window) -> _Left | None:
    """Return of which limit less is left; None is no limit."""
    if limit is None:
        return former
    left = max(0, limit - used)
    return former if former is not None and former[0] <= left else (left, limit, window)
