import sys

import pytest

from fastrun.bench.placement.plot import PlotError, draw
from fastrun.bench.placement.report import Report


@pytest.fixture
def reports():
    return [
        Report(
            policy=policy,
            source="seed 1",
            workers=workers,
            load=load,
            rate=1.0,
            requests=100,
            refused=0,
            hit_rate=0.5,
            ttft_p50_s=0.1,
            ttft_p99_s=2.0,
            wait_p50_s=0.0,
            wait_p99_s=0.0,
            fairness=1.0,
        )
        for workers in (8, 64)
        for load in (0.5, 0.95)
        for policy in ("fastrun", "smg")
    ]


def test_png(reports, tmp_path):
    """A plot is a PNG of a size for a page."""
    pytest.importorskip("matplotlib")
    draw(reports, tmp_path / "plot.png")

    png = (tmp_path / "plot.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))
    assert 300 < width < 1000
    assert 300 < height < 1000


def test_without_matplotlib(reports, tmp_path, monkeypatch):
    """Where nothing can be drawn it is said what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(PlotError, match="plot"):
        draw(reports, tmp_path / "plot.png")
