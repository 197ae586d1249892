"""The workers of a model in order of their load, kept so event by event."""

import itertools

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fastrun.v1.generation_pb2 import Usage
from fastrun.v1.scheduler_pb2 import Heartbeat, WorkerHello
from scheduler.breaker import BreakerPolicy
from scheduler.fleet import Fleet
from scheduler.leases import Lease, LeaseBook
from scheduler.placement import Placement
from scheduler.prefix_index import Prompt
from scheduler.roster import Tier

MODEL = "m"
WORKERS = [f"w{number}" for number in range(4)]
SOME_WORKER = st.sampled_from(WORKERS)
EXCLUDED = st.sampled_from([(), (), (), ("w1",), ("w0", "w2"), ("w1", "w2", "w3")]).map(frozenset)


class Floor(RuleBasedStateMachine):
    """A fleet to which everything happens that can, and its leases."""

    def __init__(self):
        super().__init__()
        self.now = 100.0
        self.numbers = itertools.count(1)
        self.fleet = Fleet(
            suspect_after_s=3.0,
            gone_after_s=5.0,
            forget_after_s=20.0,
            breaker=BreakerPolicy(failures=2, open_s=10.0),
        )
        self.placement = Placement(self.fleet, entries=50, random=lambda: 0.3)
        self.leases = LeaseBook(self.placement)

    def worker(self, worker_id):
        return next((w for w in self.fleet.workers() if w.worker_id == worker_id), None)

    @initialize()
    def set_up(self):
        for number, worker_id in enumerate(WORKERS[1:], start=1):
            self.join(worker_id, slots=number, new=True, known=True)

    @rule(
        worker_id=SOME_WORKER,
        slots=st.sampled_from([2, 0, 1, 3]),
        new=st.booleans(),
        known=st.sampled_from([True, True, True, False]),
    )
    def join(self, worker_id, slots, new, known):
        former = self.worker(worker_id)
        if new or former is None:
            instance_id = f"{worker_id}-{next(self.numbers)}"
        else:
            instance_id = former.instance_id
        hello = WorkerHello(
            worker_id=worker_id, instance_id=instance_id, slots=slots, model={"model": MODEL}
        )
        worker, _ = self.fleet.join(hello, object(), self.now)
        if former is not None and former.instance_id != instance_id:
            self.placement.end_instance(former.instance_id)
            self.leases.end_instance(former.instance_id)
        if known:
            self.fleet.confirm(worker, self.now)

    @rule(
        worker_id=SOME_WORKER,
        draining=st.sampled_from([False, False, True]),
        backlog=st.integers(0, 3),
    )
    def beat(self, worker_id, draining, backlog):
        worker = self.worker(worker_id)
        if worker is not None and worker.link is not None:
            leases = self.leases.of_instance(worker.instance_id)
            heartbeat = Heartbeat(
                running_lease_ids=[each.lease_id for each in leases[::2]],
                state="WORKER_STATE_DRAINING" if draining else "WORKER_STATE_SERVING",
                prefill_tokens=backlog * 500,
                context_tokens=backlog * 1000,
                kv_blocks_used=backlog,
                kv_blocks_total=3,
            )
            self.fleet.beat(worker, heartbeat, self.now)

    @rule(worker_id=SOME_WORKER, term=st.sampled_from([False, False, False, True]))
    def leave(self, worker_id, term):
        """A worker loses its session; or the scheduler's term ends, and all are to say Hello."""
        worker = self.worker(worker_id)
        if term:
            self.fleet.begin_term()
        elif worker is not None and worker.link is not None:
            self.fleet.leave(worker, self.now)

    @rule(seconds=st.sampled_from([0.5, 0.5, 1.0, 2.0, 3.0, 6.0, 11.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def tick(self):
        for worker in self.fleet.expire(self.now)[1]:
            self.placement.end_instance(worker.instance_id)
            self.leases.end_instance(worker.instance_id)

    @rule(asked=st.lists(st.tuples(EXCLUDED, st.integers(0, 4)), min_size=1, max_size=4))
    def grant(self, asked):
        for excluded, tokens in asked:
            self.grant_one(excluded, tokens)

    def grant_one(self, excluded, tokens):
        ends = tuple(500 * (number + 1) for number in range(tokens))
        prompt = Prompt(500 * tokens, tuple(range(tokens)), ends)
        worker = self.placement.choose(MODEL, prompt, excluded, self.now)
        may = self.may_be_chosen(excluded)
        assert (worker in may) if may else worker is None
        if worker is not None:
            lease_id = f"l{next(self.numbers)}"
            self.placement.granted(worker, lease_id, prompt, self.now)
            lease = Lease(lease_id=lease_id, instance_id=worker.instance_id, held_since=self.now)
            self.leases.grant(lease, slots=worker.slots)

    @rule(data=st.data(), end=st.sampled_from(["answered", "failed", "released", "lost"]))
    def end(self, data, end):
        leases = [lease for each in self.fleet.workers() for lease in self.of(each)]
        if not leases:
            return
        lease = data.draw(st.sampled_from(leases))
        if end in ("failed", "lost"):
            self.fleet.failed(self.fleet.instance(lease.instance_id), lease.lease_id, self.now)
        if end == "lost":
            self.leases.void(lease, started=True)
            return
        usage = Usage(prompt_tokens=10, completion_tokens=1) if end == "answered" else None
        self.placement.ran(lease, usage, self.now)
        self.leases.free(lease.instance_id, lease.lease_id)

    def of(self, worker):
        return self.leases.of_instance(worker.instance_id)

    # A plain recomputation

    def tier(self, worker):
        if not worker.breaker.passes(self.now):
            return Tier.FAILING
        return Tier.SUSPECT if worker.suspect_at <= self.now else Tier.FIT

    def usable(self):
        """Return the workers that can be granted anything, also those without a free slot."""
        workers = [each for each in self.fleet.workers() if each.takes_requests]
        return [each for each in workers if each.confirmed and each.slots]

    def may_be_chosen(self, excluded):
        usable = [each for each in self.usable() if each.worker_id not in excluded]
        trusted = [each for each in usable if self.tier(each) is not Tier.FAILING]
        free = [each for each in trusted or usable if each.slots > len(self.of(each))]
        fit = [each for each in free if self.tier(each) is Tier.FIT]
        return fit or free

    @invariant()
    def the_order_is_that_of_a_plain_sort(self):
        roster = self.fleet.roster(MODEL)
        roster.tiers(frozenset(), self.now)
        usable = self.usable()
        for tier in Tier:
            free = [w for w in usable if self.tier(w) is tier and w.slots > len(self.of(w))]
            free.sort(key=lambda worker: (self.fleet.load_of(worker), worker.turn))
            assert roster.least_loaded(tier, len(free) + 1) == free
            assert roster.least_loaded(tier, 2) == free[:2]

    @invariant()
    def the_counts_are_those_of_a_plain_count(self):
        roster = self.fleet.roster(MODEL)
        takes = [each for each in self.fleet.workers() if each.takes_requests]
        assert self.fleet.slots(MODEL) == sum(each.slots for each in takes)
        assert self.fleet.ready(MODEL) == bool(takes)
        for excluded in (frozenset(), {"w0"}, {"w0", "w1", "x"}):
            others = [each for each in takes if each.worker_id not in excluded]
            assert roster.possible(excluded) == any(each.slots for each in others)
            usable = [each for each in self.usable() if each in others]
            trusted = [each for each in usable if self.tier(each) is not Tier.FAILING]
            free = sum(max(each.slots - len(self.of(each)), 0) for each in trusted or usable)
            assert roster.free_slots(excluded, self.now) == free
            assert roster.has_free_slot(self.now) or not free

    @invariant()
    def each_worker_knows_how_many_of_its_slots_are_held(self):
        for worker in self.fleet.workers():
            assert worker.held == len(self.of(worker)) == self.leases.held(worker.instance_id)

    @invariant()
    def nothing_is_kept_of_what_has_ended(self):
        workers = self.fleet.workers()
        assert self.placement._promises.keys() <= self.leases._leases.keys()
        assert sum(len(each.load._leases) for each in workers) <= len(self.leases)


Floor.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRoster = Floor.TestCase
