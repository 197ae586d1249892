"""Figures in a page, and as a table."""

import pytest

from fastrun.bench.edge.figures import Figures
from fastrun.bench.edge.page import BEGIN, END, Circumstances, with_figures
from fastrun.bench.edge.table import TITLES, rows


def a_figure(target="fastrun", **fields):
    return Figures(
        **{
            "scenario": "pace64",
            "target": target,
            "unit": "token",
            "runs": 3,
            "cpu_us": 24.56,
            "per_s": 3250.4,
            "busy": 0.081,
            "first_token_p50_us": 1234.0,
            "first_token_p99_us": 5678.0,
            "delay_p50_us": 900.0,
            "delay_p99_us": 2900.0,
            "latency_p50_us": None,
            "latency_p99_us": None,
            "worker_us": 33.3,
            "begin_mib": 70.2,
            "end_mib": 71.9,
            "failures": 0,
            "load_average": 0.4,
            **fields,
        }
    )


AROUND = Circumstances(
    date="2026-11-30", python="3.11.7", processor="A CPU", cores=2, versions={"smg": "1.13.0"}
)


def test_rows():
    """A cell for each title; what was not measured is a dash."""
    edge, peer = rows([a_figure(), a_figure("smg", cpu_us=2456.0, worker_us=None)])
    assert len(edge) == len(peer) == len(TITLES)
    shown = dict(zip(TITLES, edge, strict=True))
    assert shown["cpu us"] == "24.6"
    assert shown["ttft p50 ms"] == "1.23"
    assert shown["answer p50 ms"] == "-"
    assert shown["mib"] == "70 to 72"
    assert dict(zip(TITLES, peer, strict=True))["of fastrun"] == "100.00"


def test_only_what_is_between_the_markers_changes():
    """What people have written stays, and a second run replaces the first one."""
    page = f"# Title\n\n{BEGIN}\nold\n{END}\n\nWords.\n"
    once = with_figures(page, [a_figure()], AROUND, "plot.png")
    assert once.startswith(f"# Title\n\n{BEGIN}\n")
    assert once.endswith(f"{END}\n\nWords.\n")
    assert "old" not in once
    assert "](plot.png)" in once
    assert "| pace64 | fastrun | 24.6 |" in once
    assert with_figures(once, [a_figure()], AROUND, "plot.png") == once
    assert "plot.png" not in with_figures(once, [a_figure()], AROUND, None)


def test_circumstances():
    """Figures say where they come from, and how busy the machine was."""
    figures = [a_figure(runs=3), a_figure("smg", load_average=0.7)]
    page = with_figures(f"{BEGIN}{END}", figures, AROUND, None)
    assert (
        "2026-11-30, 2 cores of A CPU, Python 3.11.7; medians of 3 runs; "
        "load average before each series 0.4 to 0.7; smg 1.13.0." in page
    )


@pytest.mark.parametrize("page", ["", f"{BEGIN} and no end", f"{END} before {BEGIN}"])
def test_a_page_without_a_place(page):
    """A page that has no place for figures is left alone."""
    with pytest.raises(ValueError, match="for the figures"):
        with_figures(page, [a_figure()], AROUND, None)
