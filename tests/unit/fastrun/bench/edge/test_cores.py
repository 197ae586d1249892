"""Which cores are whose."""

import pytest

from fastrun.bench.edge.cores import divided


@pytest.mark.parametrize(
    ("available", "measured", "others"),
    [({0, 1}, {1}, {0}), ({2, 5, 7}, {7}, {2, 5}), ({3}, {3}, {3})],
)
def test_the_last_core_is_for_what_is_measured(available, measured, others):
    """One core is kept apart; where there is one alone, all share it."""
    cores = divided(available)
    assert (cores.measured, cores.others) == (measured, others)
