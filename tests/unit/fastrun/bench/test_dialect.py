"""The cost of taking answers apart."""

from fastrun.bench import dialect
from gpu_worker.dialect.families import FAMILIES


def test_every_family_is_measured(monkeypatch):
    """One line for each, all of them above nothing."""
    monkeypatch.setattr(dialect, "TOKENS", 200)
    costs = dialect.measure(repeat=1)
    assert [cost.family for cost in costs] == list(FAMILIES)
    assert all(
        min(cost.plain_us, cost.with_tools_us, cost.with_tools_and_stops_us) > 0 for cost in costs
    )
