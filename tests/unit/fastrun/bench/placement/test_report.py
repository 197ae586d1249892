import pytest

from fastrun.bench.placement.report import jain, quantile, report
from fastrun.bench.placement.simulation import Served
from fastrun.bench.placement.workers import Machine


@pytest.mark.parametrize(
    ("values", "index"),
    [([1, 1, 1], 1.0), ([5], 1.0), ([1, 0, 0, 0], 0.25), ([], 1.0), ([1, 3], 0.8)],
)
def test_jain(values, index):
    """The index is 1 for equal shares and 1/n if one has all."""
    assert pytest.approx(index) == jain(dict(enumerate(values)))


def test_quantile():
    """A quantile is one of the values."""
    values = list(range(100))

    assert [quantile(values, at) for at in (0, 0.5, 0.99, 1)] == [0, 50, 99, 99]
    assert quantile([], 0.5) == 0


def test_report(ask):
    """Refused requests count as such, and in nothing else."""
    machine = Machine()
    alone = machine.alone_s(ask())
    served = [
        Served(ask(0, account=1), 0, 0.0, 1.0, 2 * alone, 512),
        Served(ask(1, account=2, at=1.0), 0, 3.0, 5.0, 1 + 6 * alone, 0),
        Served(ask(2, account=3), finished_s=10.0),
    ]
    told = report(served, machine, policy="p", source="s", workers=1, load=0.5, rate=2.0)

    assert (told.requests, told.refused, told.hit_rate) == (3, 1, 0.25)
    assert (told.ttft_p50_s, told.ttft_p99_s, told.wait_p99_s) == (4.0, 4.0, 2.0)
    assert pytest.approx(0.8) == told.fairness
