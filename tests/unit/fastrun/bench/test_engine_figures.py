"""What runs of engines come to."""

from pathlib import Path

import pytest

from fastrun.bench.engine.measurement import installed
from fastrun.bench.engine.workload import Run, Workload, figures
from fastrun.cli.bench_engine import rows


def test_figures_are_medians():
    """Of each figure by itself: a run that something disturbed counts little."""
    runs = [
        Run(tokens=100, wall_s=2.0, cpu_s=1.0, first_token_s=[0.1, 0.2, 0.3]),
        Run(tokens=100, wall_s=9.0, cpu_s=2.0, first_token_s=[0.4, 0.4, 0.9]),
        Run(tokens=100, wall_s=1.0, cpu_s=4.0, first_token_s=[0.1, 0.3, 0.9]),
    ]
    found = figures("fastrun", 3, runs)
    assert (found.tokens_per_cpu_s, found.tokens_per_s) == (50, 50)
    assert found.first_token_ms == pytest.approx(300)


def test_ratios_say_how_much_more_ours_makes():
    """Of the same second of processor, at as many streams."""
    run = Run(tokens=100, wall_s=1.0, cpu_s=1.0, first_token_s=[0.1])
    slow = Run(tokens=100, wall_s=1.0, cpu_s=4.0, first_token_s=[0.1])
    shown = rows([figures("fastrun", 1, [run]), figures("xllamacpp", 1, [slow])])
    assert [(row[0], row[3]) for row in shown] == [("fastrun", "1.00"), ("xllamacpp", "4.00")]
    assert rows([figures("xllamacpp", 1, [slow])])[0][3] == ""


def test_every_stream_has_a_prompt_of_its_own():
    """Also in the next run, so that no cache holds it."""
    one, two = Workload(3, 8, first_seed=1000), Workload(3, 8, first_seed=2000)
    assert len({*one.seeds, *two.seeds}) == 6


def test_peers_are_found_in_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What is not installed here may lie in a folder of its own."""
    monkeypatch.setattr("sys.path", [])
    assert installed(None) == ["fastrun", "fastrun fast"]
    (tmp_path / "xllamacpp").mkdir()
    assert installed(tmp_path) == ["fastrun", "fastrun fast", "xllamacpp"]
