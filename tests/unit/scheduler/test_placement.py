"""Which worker gets a request."""

from fastrun.v1.generation_pb2 import Usage
from fastrun.v1.scheduler_pb2 import Heartbeat, WorkerHello
from scheduler.breaker import BreakerPolicy
from scheduler.fleet import Fleet
from scheduler.leases import Lease, LeaseBook
from scheduler.placement import Placement
from scheduler.prefix_index import NO_PROMPT, Prompt
from scheduler.weights import Weights

NOW = 100.0
BLOCK = 500


def prompt(*hashes):
    ends = tuple(BLOCK * (number + 1) for number in range(len(hashes)))
    return Prompt(BLOCK * len(hashes), hashes, ends)


class Floor:
    """Workers of one model, and requests that go to them."""

    def __init__(self, *worker_ids, slots=4, random=0.0, **weights):
        self.fleet = Fleet(
            suspect_after_s=3.0,
            gone_after_s=5.0,
            forget_after_s=60.0,
            breaker=BreakerPolicy(failures=2, open_s=10.0),
            weights=Weights(**weights),
        )
        self.chance = [random]
        self.placement = Placement(self.fleet, entries=1000, random=self.draw)
        self.leases = LeaseBook(self.placement)
        self.worker = {worker_id: self.join(worker_id, slots) for worker_id in worker_ids}
        self.now = NOW

    def draw(self):
        return self.chance[0] if len(self.chance) == 1 else self.chance.pop(0)

    def join(self, worker_id, slots=4, model="m"):
        hello = WorkerHello(
            worker_id=worker_id, instance_id=worker_id, slots=slots, model={"model": model}
        )
        worker, _ = self.fleet.join(hello, object(), NOW)
        self.fleet.confirm(worker, NOW)
        return worker

    def choose(self, asked=NO_PROMPT, excluded=()):
        chosen = self.placement.choose("m", asked, frozenset(excluded), self.now)
        return chosen and chosen.worker_id

    def grant(self, worker_id, asked=NO_PROMPT):
        worker = self.worker[worker_id]
        lease_id = f"l{len(self.leases)}-{worker_id}"
        self.placement.granted(worker, lease_id, asked, self.now)
        lease = Lease(lease_id=lease_id, instance_id=worker.instance_id, held_since=self.now)
        self.leases.grant(lease, slots=worker.slots)
        return lease

    def end(self, lease, **usage):
        self.placement.ran(lease, Usage(**usage) if usage else None, self.now)
        self.leases.free(lease.instance_id, lease.lease_id)

    def beat(self, worker_id, **figures):
        self.fleet.beat(self.worker[worker_id], Heartbeat(**figures), self.now)

    def fail(self, worker_id, *lease_ids):
        for lease_id in lease_ids or ("", ""):
            self.fleet.failed(self.worker[worker_id], lease_id, self.now)


def test_the_least_loaded_is_chosen():
    """Load is the share of slots that are held, where nothing else is known."""
    floor = Floor("a")
    floor.worker["b"] = floor.join("b", slots=8)
    for worker_id in "abbb":
        floor.grant(worker_id)
    assert floor.choose() == "a"
    floor.grant("a")
    assert floor.choose() == "b"


def test_a_full_worker_is_never_chosen():
    """Without a free slot nobody is chosen, whatever is cached there."""
    floor = Floor("a", "b", slots=1)
    floor.join("none", slots=0)
    floor.grant("a", prompt(1, 2, 3))
    assert floor.choose(prompt(1, 2, 3)) == "b"
    floor.grant("b")
    assert floor.choose() is None


def test_who_may_not_take_requests_is_never_chosen():
    """Neither gone, draining, excluded nor unconfirmed workers, nor those of another model."""
    floor = Floor("gone", "draining", "excluded", "joining")
    floor.join("other", model="n")
    floor.grant("excluded", prompt(1))
    floor.fleet.leave(floor.worker["gone"], NOW - 5)
    floor.fleet.expire(NOW)
    floor.fleet.begin_term()
    for worker_id in ("draining", "excluded"):
        floor.fleet.confirm(floor.worker[worker_id], NOW)
    floor.beat("draining", state="WORKER_STATE_DRAINING")
    assert floor.choose(prompt(1), excluded=["excluded"]) is None
    assert floor.choose(prompt(1)) == "excluded"


def test_what_is_cached_counts_for_more_as_slots_run_out():
    """An idle worker computes again what a busy one has cached, until few slots are left."""
    floor = Floor("a", "b", prefill=1.0, context=0.0, occupancy=0.0)
    lease = floor.grant("a", prompt(1))
    floor.end(lease, prompt_tokens=BLOCK, completion_tokens=1)
    floor.grant("a", prompt(2, 3))
    assert floor.choose(prompt(1)) == "b"
    for _ in range(2):
        floor.grant("a")
        floor.grant("b")
    assert floor.choose(prompt(1)) == "a"


def test_a_suspect_is_the_last_choice():
    """A suspect worker is used when no other one has a slot, however much it has cached."""
    floor = Floor("busy", "idle")
    for _ in range(3):
        floor.grant("busy")
    floor.end(floor.grant("idle", prompt(1, 2, 3)), prompt_tokens=9, completion_tokens=1)
    floor.now = NOW + 1
    floor.beat("busy")
    floor.now = NOW + 3
    assert floor.choose(prompt(1, 2, 3)) == "busy"
    floor.grant("busy")
    assert floor.choose() == "idle"


def test_who_was_silent_longest_is_a_suspect_first():
    """Whatever else happened to it since it was heard."""
    floor = Floor("early", "late")
    floor.now = NOW + 1
    floor.beat("late")
    floor.now = NOW + 2
    floor.fail("early", "x")
    floor.grant("late")
    floor.now = NOW + 3
    assert floor.choose() == "late"


def test_equals_take_turns():
    """Among equally loaded workers the one granted longest ago is chosen."""
    floor = Floor("a", "b", "c")
    seen = []
    for _ in range(6):
        seen.append(floor.choose())
        floor.end(floor.grant(seen[-1]))
    assert seen == ["a", "b", "c", "a", "b", "c"]


def test_a_request_goes_where_its_beginning_is():
    """As long as what it saves is more than what it has to wait for there."""
    floor = Floor(*"abcdefgh", prefill=1.0)
    floor.end(floor.grant("h", prompt(1, 2, 3, 4)), prompt_tokens=2000, completion_tokens=9)
    floor.grant("h")
    asked = prompt(1, 2, 3, 4, 5)
    assert floor.choose(asked) == "h"
    floor.beat("h", prefill_tokens=2 * BLOCK)
    assert floor.choose(asked) == "h"
    floor.beat("h", prefill_tokens=5 * BLOCK)
    assert floor.choose(asked) != "h"


def test_of_two_holders_the_one_with_less_to_do():
    """Half of it and nothing to do is better than all of it and long prompts before it."""
    floor = Floor(*"abcdefgh", prefill=1.0)
    floor.end(floor.grant("g", prompt(1, 2)), prompt_tokens=9, completion_tokens=1)
    floor.end(floor.grant("h", prompt(1, 2, 3, 4)), prompt_tokens=9, completion_tokens=1)
    assert floor.choose(prompt(1, 2, 3, 4)) == "h"
    floor.grant("h", prompt(11, 12, 13, 14))
    assert floor.choose(prompt(1, 2, 3, 4)) == "g"


def test_what_was_just_granted_counts():
    """Several long prompts at once do not meet at one worker, before any heartbeat."""
    floor = Floor("a", "b", "c")
    long = [prompt(*range(number, number + 9)) for number in (100, 200, 300)]
    chosen = []
    for each in long:
        chosen.append(floor.choose(each))
        floor.grant(chosen[-1], each)
    assert sorted(chosen) == ["a", "b", "c"]


def test_running_contexts_are_load():
    """Of workers with as many requests, the one with the shorter ones is chosen."""
    floor = Floor("a", "b")
    floor.beat("a", context_tokens=60_000)
    floor.beat("b", context_tokens=6_000)
    assert floor.choose() == "b"


def test_a_worker_that_runs_out_of_memory_is_spared():
    """It costs more the nearer it is to full, and nothing while there is enough."""
    floor = Floor("a", "b")
    floor.beat("a", kv_blocks_used=79, kv_blocks_total=100)
    floor.beat("b", kv_blocks_used=10, kv_blocks_total=100)
    assert floor.choose() == "a"
    floor.beat("a", kv_blocks_used=95, kv_blocks_total=100)
    assert floor.choose() == "b"


def test_nobody_excluded_is_compared():
    """Neither as one of the least loaded, nor as a holder, nor at random."""
    floor = Floor(*"abcdef", least_loaded=1, at_random=2, random=0.0)
    floor.end(floor.grant("a", prompt(1, 2)), prompt_tokens=9, completion_tokens=1)
    for worker_id in "bcdef":
        floor.beat(worker_id, prefill_tokens=700, context_tokens=1)
    assert floor.choose(prompt(1, 2)) == "a"
    assert floor.choose(prompt(1, 2), excluded=["a"]) in "bcdef"
    assert floor.choose(excluded=["a"]) in "bcdef"


def test_equals_are_taken_at_random_two_by_two():
    """Of workers within the estimates' error two are drawn, and the emptier of them is taken."""
    floor = Floor("a", "b", "c", "d", least_loaded=4, at_random=0, tie_tokens=1000.0)
    for worker_id in "aab":
        floor.grant(worker_id)
    drawn = set()
    for first in (0.0, 0.3, 0.6, 0.9):
        for second in (0.0, 0.4, 0.9):
            floor.chance = [first, second]
            drawn.add(floor.choose())
    assert drawn == {"b", "c", "d"}


def test_who_is_drawn_at_random_is_compared():
    """Workers far down the order have a chance, which matters when the order is out of date."""
    floor = Floor(*"abcdef", least_loaded=1, at_random=1, random=0.99)
    for number, worker_id in enumerate("abcdef"):
        floor.beat(worker_id, prefill_tokens=1000 + 10 * number, context_tokens=1)
    floor.now = NOW + 1
    for worker_id in "abcde":
        floor.beat(worker_id, prefill_tokens=1000, context_tokens=1)
    floor.beat("f", prefill_tokens=1050, context_tokens=1)
    floor.worker["f"].load.prefill_rate = 500.0
    floor.now = NOW + 2
    assert floor.choose() == "f"


def test_what_did_not_run_is_not_cached():
    """A lease that ends without its request having run leaves nothing behind."""
    floor = Floor(*"abcdefgh")
    lease = floor.grant("h", prompt(1, 2, 3, 4))
    assert floor.placement.index.cached_tokens("h", prompt(1, 2, 3, 4)) == [4 * BLOCK]
    floor.end(lease)
    assert len(floor.placement.index) == 0
    assert floor.worker["h"].load.backlog(NOW) == 0
    floor.end(floor.grant("h", prompt(1, 2)), prompt_tokens=900, completion_tokens=0)
    assert len(floor.placement.index) == 0


def test_a_failing_worker_is_passed_over_while_another_takes_requests():
    """Also if that means to wait, since the other one will be free."""
    floor = Floor("good", "bad", slots=1)
    floor.fail("bad")
    assert floor.choose() == "good"
    assert floor.choose(excluded=["good"]) == "bad"
    floor.grant("good")
    assert floor.choose() is None
    assert not floor.fleet.roster("m").free_slots(frozenset(), NOW)


def test_when_all_fail_all_are_used():
    """A breaker must never stop a fleet."""
    floor = Floor("a", "b", slots=1)
    floor.fail("a")
    floor.fail("b")
    assert floor.choose() == "a"
    floor.grant("a")
    assert floor.choose() == "b"


def test_one_request_tries_a_failing_worker():
    """After 10 s, and whether it is used again depends on that one."""
    floor = Floor("good", "bad", slots=2)
    floor.fail("bad")
    floor.grant("good")
    floor.grant("good")
    floor.now = NOW + 10
    floor.beat("good")
    floor.beat("bad")
    assert floor.choose() == "bad"
    lease = floor.grant("bad")
    assert floor.choose() is None
    floor.end(lease, prompt_tokens=9, completion_tokens=1)
    assert floor.choose() == "bad"
    assert floor.worker["bad"].state(floor.now) == "serving"


def test_a_trial_without_an_answer_is_repeated():
    """A client that leaves says nothing about the worker: the next request tries it."""
    floor = Floor("good", "bad", slots=1)
    floor.fail("bad")
    floor.grant("good")
    floor.now = NOW + 10
    floor.beat("bad")
    floor.end(floor.grant("bad"), prompt_tokens=9, completion_tokens=0)
    assert floor.worker["bad"].state(floor.now) == "failing"
    assert floor.choose() == "bad"


def test_a_lost_lease_is_no_success():
    """What its worker says of it afterwards does not make good that it was lost."""
    floor = Floor("a", "b", slots=40)
    leases = [floor.grant("a") for _ in range(40)]
    for lease in leases:
        floor.leases.void(lease, started=True)
        floor.fail("a", lease.lease_id)
    for lease in leases:
        floor.end(lease, prompt_tokens=9, completion_tokens=5)
    assert floor.worker["a"].state(NOW) == "failing"


def test_a_new_process_has_a_new_breaker():
    """And one that comes back with the same instance has kept its own."""
    floor = Floor("a", "b")
    floor.fail("a")
    assert floor.join("a").state(NOW) == "failing"
    hello = WorkerHello(worker_id="a", instance_id="a2", slots=1, model={"model": "m"})
    worker, _ = floor.fleet.join(hello, object(), NOW)
    floor.fleet.confirm(worker, NOW)
    assert worker.state(NOW) == "serving"


def test_the_index_learns_how_much_a_worker_can_hold():
    """From the blocks of memory that it tells of."""
    floor = Floor("a")
    floor.beat("a", kv_blocks_total=50)
    floor.grant("a", prompt(1, 2, 3, 4, 5))
    assert floor.placement.index.cached_tokens("a", prompt(1, 2, 3, 4, 5)) == [3 * BLOCK]
