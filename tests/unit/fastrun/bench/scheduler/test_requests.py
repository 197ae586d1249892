"""What the simulated edges ask for."""

from itertools import islice

import pytest

from fastrun.bench.scheduler.prefixes import Prefixes
from fastrun.bench.scheduler.requests import Mix, acquires


def some(prefixes, *, limits=True, seed=1, count=200):
    mix = Mix(prefixes=prefixes, blocks=8, accounts=3, limits=limits)
    return list(islice(acquires(mix, seed), count))


def test_requests_of_a_seed_are_the_same():
    """Two runs of one seed ask for the same, and those of another seed for something else."""
    assert some(Prefixes.SHARED) == some(Prefixes.SHARED)
    assert some(Prefixes.SHARED) != some(Prefixes.SHARED, seed=2)


def test_ids_are_never_used_again():
    """Each request of all runs has an id of its own."""
    ids = {each.request_id for seed in (1, 2) for each in some(Prefixes.NONE, seed=seed)}
    assert len(ids) == 400


@pytest.mark.parametrize(
    ("prefixes", "known", "different"),
    [(Prefixes.NONE, 0, 1), (Prefixes.UNIQUE, 8, 2000), (Prefixes.SHARED, 8, 1000)],
)
def test_prefixes(prefixes, known, different):
    """Nothing is told, or all begin like no other, or some like others."""
    requests = some(prefixes, count=2000)
    firsts = {tuple(each.prefix_hashes[:6]) for each in requests}
    assert {len(each.prefix_hashes) for each in requests} == {known}
    assert {len(each.prefix_tokens) for each in requests} == {known}
    assert len({tuple(each.prefix_hashes) for each in requests}) == (2000 if known else 1)
    if prefixes is Prefixes.SHARED:
        assert different < len(firsts) < len(requests)
    else:
        assert len(firsts) == max(different, 1)


def test_limits():
    """Limits are those of the account and of the key, or none."""
    limited, free = some(Prefixes.NONE)[0], some(Prefixes.NONE, limits=False)[0]
    assert limited.account_limits.requests_per_minute
    assert limited.key_limits.tokens_per_month
    assert not free.account_limits.ByteSize()
    assert not free.key_limits.ByteSize()
