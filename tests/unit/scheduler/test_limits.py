"""Limits, held against a plain model: lists of what was charged when."""

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fastrun.v1 import auth_pb2
from fastrun.v1.generation_pb2 import Usage
from fastrun.v1.scheduler_pb2 import Acquire, RateLimit
from scheduler.limits import Limits

KEYS = {"k1": "a1", "k2": "a1", "k3": "a2"}
# Rounded sums of times may differ by a little.
MINUTE_S = 60.0 - 1e-6
MINUTE_AND_CELL_S = 61.0 + 1e-6
STEPS_S = [0.0, 0.01, 0.3, 0.999, 1.0, 5.0, 29.5, 60.0, 61.0, 100.0]


class Ledger:
    """What one account or key was charged, in the plainest way."""

    def __init__(self):
        self.requests = []
        self.tokens = []
        self.running = {}
        self.month = 0
        self.has_month = False

    @staticmethod
    def last(entries, now, seconds):
        return sum(amount for at, amount in entries if at > now - seconds)


class World(RuleBasedStateMachine):
    """Requests come, run, fail, are tried again and end; time passes; limits change."""

    def __init__(self):
        super().__init__()
        self.now = 1000.0
        self.limits = Limits(lambda: 1_800_000_000.0 + self.now)
        self.ledgers = {name: Ledger() for name in (*KEYS, *KEYS.values())}
        self.ceilings = {}
        self.numbers = itertools.count(1)
        self.open = {}
        self.closed = {}

    @initialize(data=st.data())
    def set_up(self, data):
        for name in self.ledgers:
            self.change_limits(data, name)

    @rule(data=st.data(), name=st.sampled_from([*KEYS, "a1", "a2"]))
    def change_limits(self, data, name):
        some = st.one_of(st.none(), st.integers(0, 6))
        self.ceilings[name] = {
            "requests_per_minute": data.draw(some),
            "tokens_per_minute": data.draw(st.one_of(st.none(), st.integers(0, 300))),
            "concurrent_requests": data.draw(some),
            "tokens_per_month": data.draw(st.one_of(st.none(), st.integers(100, 3000))),
        }

    @rule(seconds=st.sampled_from(STEPS_S))
    def wait(self, seconds):
        self.now += seconds

    @rule(key=st.sampled_from(list(KEYS)), estimate=st.integers(0, 120), times=st.integers(1, 4))
    def ask(self, key, estimate, times):
        for _ in range(times):
            self.ask_once(f"r{next(self.numbers)}", key, estimate)

    def acquire(self, request_id, key, estimate, **fields):
        account = KEYS[key]
        return Acquire(
            request_id=request_id,
            account_id=account,
            key_id=key,
            account_limits=auth_pb2.Limits(**self.ceilings[account]),
            key_limits=auth_pb2.Limits(**self.ceilings[key]),
            token_estimate=estimate,
            **fields,
        )

    def ask_once(self, request_id, key, estimate):
        names = (KEYS[key], key)
        acquire = self.acquire(request_id, key, estimate)
        for name in names:
            limit = self.ceilings[name]["tokens_per_month"]
            self.ledgers[name].has_month |= limit is not None
        before = self.counters()
        reached = self.limits.why_refused(acquire, self.now)
        assert self.counters() == before, "asking has changed a counter"
        if reached is not None:
            assert reached.opens_in_s > 0
            assert self.is_fair(reached.name, names, estimate), f"refused for {reached.name}"
            return
        self.limits.let_in(acquire, self.now)
        request = SimpleNamespace(
            id=request_id,
            key=key,
            names=names,
            estimate=estimate,
            ran=False,
            used=0,
            answer=0,
            entries=[],
        )
        for name in names:
            most, ledger = self.ceilings[name], self.ledgers[name]
            limit = most["tokens_per_minute"]
            charged = estimate if limit is None else min(limit, estimate)
            one, tokens = [self.now, 1], [self.now, charged]
            ledger.requests.append(one)
            ledger.tokens.append(tokens)
            ledger.running[request_id] = estimate
            request.entries.append((ledger, one, [tokens]))
            self.check(most, ledger)
        self.open[request_id] = request

    def check(self, most, ledger):
        """In the minute that ends now, and at this moment, no more than the limits."""
        for entries, limit in (
            (ledger.requests, most["requests_per_minute"]),
            (ledger.tokens, most["tokens_per_minute"]),
        ):
            assert limit is None or ledger.last(entries, self.now, MINUTE_S) <= limit
        concurrent = most["concurrent_requests"]
        assert concurrent is None or len(ledger.running) <= concurrent

    def is_fair(self, name, names, estimate):
        """Whether some limit of that name leaves no room, seen with cells of a second."""
        for each in names:
            most, ledger = self.ceilings[each], self.ledgers[each]
            requests = ledger.last(ledger.requests, self.now, MINUTE_AND_CELL_S) + 1
            limit = most["tokens_per_minute"] or 0
            tokens = ledger.last(ledger.tokens, self.now, MINUTE_AND_CELL_S) + max(
                1, min(estimate, limit)
            )
            used = ledger.month + sum(ledger.running.values())
            rows = {
                "requests per minute": (requests - 1, most["requests_per_minute"]),
                "tokens per minute": (tokens - 1, most["tokens_per_minute"]),
                "concurrent requests": (len(ledger.running), most["concurrent_requests"]),
                "tokens per month": (used, most["tokens_per_month"]),
            }
            have, allowed = rows[name]
            if allowed is not None and have >= allowed:
                return True
        return False

    def counters(self):
        return {name: self.counter(name) for name in self.ledgers}

    def counter(self, name):
        group = self.limits._keys if name in KEYS else self.limits._accounts
        meter = group.get(name)
        if meter is None:
            return (0, 0, 0, 0, 0)
        meter.window.lapse(self.now)
        return (
            meter.window.requests,
            meter.window.tokens,
            meter.in_flight,
            meter.reserved,
            meter.month.used(),
        )

    def lease(self, request):
        account = KEYS[request.key]
        return SimpleNamespace(
            request_id=request.id,
            account_id=account,
            key_id=request.key,
            generation=0,
            choices=1,
        )

    def pick(self, data, requests):
        return requests[data.draw(st.sampled_from(sorted(requests)))]

    @precondition(lambda self: self.open)
    @rule(
        data=st.data(), prompt=st.integers(0, 60), answer=st.integers(0, 200), breaks=st.booleans()
    )
    def finish(self, data, prompt, answer, breaks):
        """A worker has run it, and says what it used; one that broke off may come back."""
        request = self.pick(data, self.open)
        usage = Usage(prompt_tokens=prompt, completion_tokens=answer)
        self.limits.use(self.lease(request), usage, self.now)
        self.limits.left(request.id, self.now, over=False, last=True)
        # The prompt counts once, and of the answer what is new.
        used = max(0, answer - request.answer) + (0 if request.ran else prompt)
        request.answer, request.ran = answer, True
        request.used += used
        for ledger, _, charges in request.entries:
            ledger.month += used if ledger.has_month else 0
            extra = request.used - sum(amount for _, amount in charges)
            if extra > 0:
                charges.append([self.now, extra])
                ledger.tokens.append(charges[-1])
            elif extra < 0:
                charges[0][1] += extra
        self.end(request)
        if not breaks:
            del self.closed[request.id]

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def give_up(self, data):
        """Refused for capacity, out of time, cancelled or released before its Start."""
        request = self.pick(data, self.open)
        self.limits.left(request.id, self.now, over=True, last=True)
        if not request.ran:
            for _, one, charges in request.entries:
                one[1] = charges[0][1] = 0
        self.end(request)
        del self.closed[request.id]

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def fail(self, data):
        """Its worker refused it or died: it may come back."""
        request = self.pick(data, self.open)
        self.limits.left(request.id, self.now, over=False, last=True)
        self.end(request)

    def end(self, request):
        request.ended_at = self.now
        del self.open[request.id]
        for ledger, _, _ in request.entries:
            del ledger.running[request.id]
        self.closed[request.id] = request

    @precondition(lambda self: self.closed)
    @rule(data=st.data())
    def retry(self, data):
        """A request that failed on a worker is asked for again, and is not charged again."""
        request = self.pick(data, self.closed)
        del self.closed[request.id]
        if self.now - request.ended_at >= MINUTE_S:
            return
        # It tells no month: what its edge knew of that may be of the month before.
        acquire = self.acquire(request.id, request.key, request.estimate, front=True)
        before = {name: self.counter(name)[:2] for name in request.names}
        assert self.limits.why_refused(acquire, self.now) is None
        self.limits.let_in(acquire, self.now)
        assert {name: self.counter(name)[:2] for name in request.names} == before
        for ledger, _, _ in request.entries:
            ledger.running[request.id] = 0
        self.open[request.id] = request

    @invariant()
    def counts_as_the_model(self):
        for name, ledger in self.ledgers.items():
            requests, tokens, in_flight, reserved, _ = self.counter(name)
            last = ledger.last
            assert last(ledger.requests, self.now, MINUTE_S) <= requests
            assert requests <= last(ledger.requests, self.now, MINUTE_AND_CELL_S)
            assert (
                last(ledger.tokens, self.now, MINUTE_S)
                <= tokens
                <= last(ledger.tokens, self.now, MINUTE_AND_CELL_S)
            )
            assert in_flight == len(ledger.running)
            assert reserved == sum(ledger.running.values())

    @invariant()
    def the_month_is_what_was_settled(self):
        for name, ledger in self.ledgers.items():
            assert self.counter(name)[4] == ledger.month


World.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestLimits = World.TestCase


@pytest.fixture
def limits():
    """Nothing used."""
    return Limits(lambda: 1_800_000_000.0)


def ask(limits, request_id, now, *, estimate=10, month=0, front=False, **ceiling):
    """Ask for one more request of an account; returns why not, or None and it is let in."""
    acquire = Acquire(
        request_id=request_id,
        account_id="a",
        key_id="k",
        account_limits=auth_pb2.Limits(**ceiling),
        account_month_tokens=month,
        token_estimate=estimate,
        front=front,
        choices=2,
    )
    reached = limits.why_refused(acquire, now)
    if reached is None:
        limits.let_in(acquire, now)
    return reached


def figures(limits, now):
    told = RateLimit()
    limits.tell(told, "a", "k", now)
    return told


def lease(request_id, generation=0, **fields):
    told = {"account_id": "a", "key_id": "k", "choices": 2} | fields
    return SimpleNamespace(request_id=request_id, generation=generation, **told)


def test_a_thousand_at_a_hundred(limits):
    """Of 1,000 requests at 100 per minute exactly 100 pass, and in the next minute 100 more."""
    for minute in range(3):
        now = 60.0 * minute
        passed = [
            number
            for number in range(1000)
            if ask(limits, f"{minute} {number}", now, requests_per_minute=100) is None
        ]
        assert passed == list(range(100))


@pytest.mark.parametrize(
    ("ceiling", "message", "retry_after_ms"),
    [
        ({"requests_per_minute": 1}, "requests per minute limit of 1 reached", 50_000),
        ({"tokens_per_minute": 15}, "tokens per minute limit of 15 reached", 50_000),
        ({"concurrent_requests": 1}, "concurrent requests limit of 1 reached", 1000),
        (
            {"requests_per_minute": 1, "concurrent_requests": 1},
            "requests per minute limit of 1 reached",
            50_000,
        ),
    ],
)
def test_messages(limits, ceiling, message, retry_after_ms):
    """A refusal names the limit that opens last, and says when it does."""
    assert ask(limits, "1", 0.0, **ceiling) is None
    detail = ask(limits, "2", 10.0, **ceiling).detail()
    assert (detail.message, detail.retry_after_ms) == (message, retry_after_ms)


def test_month(limits):
    """A month's tokens run out by what was recorded and by what was settled, until it ends."""
    assert ask(limits, "1", 0.0, month=900, tokens_per_month=1000, estimate=99) is None
    assert ask(limits, "2", 0.0, month=900, tokens_per_month=1000) is None
    reached = ask(limits, "3", 0.0, month=900, tokens_per_month=1000)
    assert reached.detail().message == "tokens per month limit of 1000 reached"
    assert reached.opens_in_s == 1_801_440_000.0 - 1_800_000_000.0
    for request_id in ("1", "2"):
        limits.use(lease(request_id), Usage(prompt_tokens=20, completion_tokens=20), 5.0)
        limits.left(request_id, 5.0, over=False, last=True)
    assert ask(limits, "4", 5.0, month=900, tokens_per_month=1000) is None
    assert ask(limits, "5", 5.0, month=1001, tokens_per_month=1000)


def test_a_month_that_is_over_is_not_told_again():
    """A request that comes back after the end of a month brings no figure of that month along."""
    wall = [1_801_440_000.0 - 10]
    limits = Limits(lambda: wall[0])
    assert ask(limits, "1", 0.0, month=900, tokens_per_month=1000) is None
    wall[0] += 1800
    assert ask(limits, "1", 1800.0, month=900, tokens_per_month=1000, front=True) is None
    limits.left("1", 1801.0, over=False, last=True)
    wall[0] += 3600
    assert ask(limits, "2", 5400.0, month=0, tokens_per_month=500) is None


def test_larger_than_the_limit(limits):
    """A request larger than the tokens per minute passes when none were used, and not never."""
    assert ask(limits, "1", 0.0, tokens_per_minute=100, estimate=5000) is None
    assert ask(limits, "2", 59.0, tokens_per_minute=100, estimate=5000)
    assert ask(limits, "3", 60.0, tokens_per_minute=100, estimate=5000) is None


def test_a_prompt_counts_once(limits):
    """Of generations with the same prompt, one counts it; each counts its answer."""
    assert ask(limits, "1", 0.0, tokens_per_minute=1000, estimate=0) is None
    for generation in range(4):  # two prompts, two choices each
        usage = Usage(prompt_tokens=100, completion_tokens=10)
        limits.use(lease("1", generation), usage, 1.0)
    limits.left("1", 1.0, over=False, last=True)
    assert figures(limits, 1.0).remaining_tokens == 1000 - 2 * 100 - 4 * 10


def test_figures(limits):
    """The figures say what is left, and how long until all of it is there again."""
    ceiling = {"requests_per_minute": 10, "tokens_per_minute": 100}
    ask(limits, "1", 0.0, **ceiling)
    ask(limits, "2", 30.0, **ceiling)
    told = figures(limits, 40.0)
    assert (told.limit_requests, told.remaining_requests) == (10, 8)
    assert (told.limit_tokens, told.remaining_tokens) == (100, 80)
    assert told.reset_requests_ms == told.reset_tokens_ms == 50_000
    assert figures(limits, 90.0).remaining_requests == 10


def test_no_limits_no_figures(limits):
    """Where there is no limit there are no figures, and of one kind those of that kind alone."""
    ask(limits, "1", 0.0)
    assert figures(limits, 0.0) == RateLimit()
    ask(limits, "2", 0.0, tokens_per_minute=100)
    assert not figures(limits, 0.0).HasField("limit_requests")


def test_running_leases_of_another_scheduler(limits):
    """What another scheduler let in counts as concurrent, and when it tells what it used."""
    limits.hold(lease("old"), 0.0)
    limits.hold(lease("old", 1), 0.0)
    assert ask(limits, "new", 0.0, concurrent_requests=1)
    limits.use(lease("old"), Usage(completion_tokens=70), 1.0)
    limits.left("old", 1.0, over=False, last=True)
    assert ask(limits, "new", 1.0, concurrent_requests=1, tokens_per_minute=100) is None
    assert figures(limits, 1.0).remaining_tokens == 20


def test_a_way_lost_while_waiting(limits):
    """What its edge asks for again after a broken session is not charged again, but no crowd."""
    ceiling = {"requests_per_minute": 2, "concurrent_requests": 1}
    assert ask(limits, "1", 0.0, **ceiling) is None
    limits.left("1", 1.0, over=False, last=True)
    assert ask(limits, "2", 1.0, **ceiling) is None
    assert ask(limits, "1", 2.0, **ceiling).name == "concurrent requests"
    limits.left("2", 3.0, over=False, last=True)
    assert ask(limits, "1", 3.0, **ceiling) is None
    assert figures(limits, 3.0).remaining_requests == 0


def test_from_a_worker_after_its_release(limits):
    """A request that was given back unstarted and comes back at the front is charged once."""
    assert ask(limits, "1", 0.0, requests_per_minute=5) is None
    limits.left("1", 1.0, over=True, last=True)
    assert figures(limits, 1.0).remaining_requests == 5
    assert ask(limits, "1", 1.0, requests_per_minute=5, front=True) is None
    assert figures(limits, 1.0).remaining_requests == 4


def test_the_idle_are_forgotten(limits):
    """Accounts that do nothing for an hour take no memory, unless something of them still runs."""
    for number in range(10):
        acquire = Acquire(request_id=f"{number}", account_id=f"a{number}")
        assert limits.why_refused(acquire, 0.0) is None
        limits.let_in(acquire, 0.0)
        if number:
            limits.left(f"{number}", 0.0, over=False, last=True)
    for number in range(10):
        ask(limits, "r", 4000.0 + number)
    assert len(limits._accounts) == 2
    limits.left("r", 5000.0, over=False, last=True)
    assert limits._ended.keys() == {"r"}
