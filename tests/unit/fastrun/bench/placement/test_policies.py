from random import Random

import pytest

from fastrun.bench.placement.policies import CacheAware, Dynamo, PowerOfTwo, PrefixOnly, RoundRobin


@pytest.fixture
def make():
    return lambda policy, workers=3: policy(workers, 1024, Random(0))


def test_round_robin(make, ask):
    """Those without a slot are passed over, and the round goes on where it was."""
    policy = make(RoundRobin)

    assert [
        policy.choose(ask(), free) for free in ([0, 1, 2], [0, 2], [0, 1, 2], [1, 2], [0, 2])
    ] == [0, 2, 0, 1, 2]


def test_power_of_two(make, ask):
    """Of two the less loaded is taken, so the most loaded of three never is."""
    policy = make(PowerOfTwo)
    policy.placed(ask(), 1)

    assert {0, 2} == {policy.choose(ask(), [0, 1, 2]) for _ in range(50)}


def test_prefix_only(make, ask):
    """The longest beginning wins, however loaded its worker is."""
    policy = make(PrefixOnly)
    for _ in range(9):
        policy.placed(ask(topic=1), 1)
    policy.placed(ask(topic=1, prompt=512), 2)

    assert policy.choose(ask(topic=1), [0, 1, 2]) == 1
    assert policy.choose(ask(topic=1), [0, 2]) == 2


def test_dynamo(make, ask):
    """The cost is what must be prefilled, with what waits there, and what is held, in blocks."""
    policy = make(Dynamo, 2)
    for block in ask(topic=1, prompt=2048).blocks:
        policy.stored(0, block)
    policy.placed(ask(0, topic=2, prompt=1536), 0)
    # Worker 0: 3 blocks wait, 0 of 4 new, 3 + 4 held: 10. Worker 1: 4 new, 4 held: 8.
    assert policy.choose(ask(1, topic=1, prompt=2048), [0, 1]) == 1
    policy.first_token(ask(0, topic=2, prompt=1536), 0)
    # Now 7 and 8.
    assert policy.choose(ask(1, topic=1, prompt=2048), [0, 1]) == 0
    policy.evicted(0, ask(topic=1, prompt=2048).blocks[2])
    # Now 9 and 8.
    assert policy.choose(ask(1, topic=1, prompt=2048), [0, 1]) == 1
    policy.finished(ask(0, topic=2, prompt=1536), 0)
    assert policy.choose(ask(1, topic=1, prompt=2048), [0, 1]) == 0


def test_smg(make, ask):
    """Half of the prompt is enough to follow it; with less, the smallest tree is taken."""
    policy = make(CacheAware)
    policy.placed(ask(topic=1, prompt=1024), 2)
    policy.placed(ask(topic=2, prompt=512), 0)
    policy.placed(ask(topic=3, prompt=512 * 4), 1)

    assert policy.choose(ask(topic=1, prompt=2048), [0, 1, 2]) == 2
    assert policy.choose(ask(topic=1, prompt=2049), [0, 1, 2]) == 0


def test_smg_out_of_balance(make, ask):
    """Where one has 33 requests more than another, and a tenth more, the least loaded is taken."""
    policy = make(CacheAware)
    for _ in range(32):
        policy.placed(ask(topic=1), 2)
    policy.placed(ask(topic=2), 1)
    assert policy.choose(ask(topic=1), [0, 1, 2]) == 2
    policy.placed(ask(topic=1), 2)
    assert policy.choose(ask(topic=1), [0, 1, 2]) == 0
