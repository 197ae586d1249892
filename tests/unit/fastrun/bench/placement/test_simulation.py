from collections import Counter

import pytest

from fastrun.bench.placement.comparison import NAMES, OURS, Fleet, capacity, compare
from fastrun.bench.placement.dispatch import Waiting
from fastrun.bench.placement.generator import Conversations, generate
from fastrun.bench.placement.trace import at_rate
from fastrun.bench.placement.workers import Machine

REQUESTS = generate(Conversations(requests=300, accounts=4), 3)
SMALL = Machine(slots=4)


def fleet(workers=3, *, machine=SMALL, waiting=None, seed=0):
    return Fleet(workers, machine, waiting or Waiting(), seed)


@pytest.mark.parametrize("load", [1.0, 30.0])
@pytest.mark.parametrize("policy", NAMES)
def test_each_ends_once(policy, load):
    """Every request is served or refused, once, and no worker ever has more than its slots."""
    served = fleet().simulation(policy, at_rate(REQUESTS, load)).run()

    changes = []
    for each in served:
        if each.worker is None:
            assert each.request.arrives_s <= each.finished_s <= each.request.arrives_s + 10.001
            continue
        assert each.request.arrives_s <= each.placed_s < each.first_token_s <= each.finished_s
        assert 0 <= each.cached_tokens < each.request.prompt_tokens
        changes += [(each.placed_s, 1, each.worker), (each.finished_s, -1, each.worker)]
    held = Counter()
    for _, change, worker in sorted(changes):
        held[worker] += change
        assert held[worker] <= SMALL.slots
    assert len(REQUESTS) == len(served)
    refused = sum(each.worker is None for each in served)
    assert (load > 1) == (refused > 0)


@pytest.mark.parametrize("policy", NAMES)
def test_repeatable(policy):
    """The same seed gives the same result."""
    arriving = at_rate(REQUESTS, 3.0)

    assert fleet().simulation(policy, arriving).run() == pytest.approx(
        fleet().simulation(policy, arriving).run()
    )


@pytest.mark.parametrize("policy", NAMES)
def test_queue(policy, ask):
    """The bound of the queue and its deadline hold for all policies alike."""
    requests = [ask(number, at=number / 1000, output=2000, topic=number) for number in range(8)]
    one = fleet(1, machine=Machine(slots=2), waiting=Waiting(per_slot=1.5, timeout_s=1.0))
    served = one.simulation(policy, requests).run()

    assert [each.worker for each in served] == [0, 0, None, None, None, None, None, None]
    # Three wait for a second, and the others are turned away.
    waited = [each.finished_s - each.request.arrives_s for each in served[2:]]
    assert pytest.approx(waited) == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("policy", ["prefix_only", "dynamo", "smg"])
def test_affinity(policy, ask):
    """A policy that knows of prefixes sends a prompt where its beginning is."""
    requests = [ask(number, at=9.0 * (number // 2), topic=number % 2) for number in range(8)]
    served = fleet(2).simulation(policy, requests).run()

    assert len({each.worker for each in served[:2]}) == 2
    assert [each.cached_tokens for each in served[2:]] == [512] * 6
    assert served[0].worker == served[2].worker == served[4].worker


def test_capacity():
    """At what a fleet can carry the best policy refuses next to nothing, and well above it all do."""
    small = fleet(2)
    carries = capacity(small, REQUESTS)

    def refused(policy, rate):
        served = small.simulation(policy, at_rate(REQUESTS, rate)).run()
        return sum(each.worker is None for each in served)

    names = [name for name in NAMES if name != OURS]
    assert min(refused(name, carries) for name in names) <= 3
    assert min(refused(name, 2 * carries) for name in names) > 3


def test_reports():
    """A comparison has a line for each policy at each load, with the same requests."""
    reports = list(
        compare(fleet(2), REQUESTS, source="x", loads=[0.5, 0.9], policies=["smg", "round_robin"])
    )

    assert [(each.load, each.policy) for each in reports] == [
        (0.5, "smg"),
        (0.5, "round_robin"),
        (0.9, "smg"),
        (0.9, "round_robin"),
    ]
    assert {300} == {each.requests for each in reports}
    assert reports[0].hit_rate > reports[1].hit_rate
    assert reports[1].ttft_p50_s < reports[3].ttft_p50_s
    assert pytest.approx(reports[0].rate / 5) == reports[2].rate / 9
    assert all(0 < each.fairness <= 1 for each in reports)
