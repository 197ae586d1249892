"""Draws what policies reach: the hit rate of caches against the time to the first token."""

from collections.abc import Sequence
from pathlib import Path

from fastrun.bench.placement.report import Report

MARKERS = "*os^vDPX"


class PlotError(Exception):
    """Nothing can be drawn; the message says what to install."""


def draw(reports: Sequence[Report], path: Path) -> None:
    """Write a PNG: a panel for each source, fleet and load, and in it a point for each policy.

    Up and to the left is better.

    Raises:
        PlotError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise PlotError("install fastrun[plot] to draw") from error
    rows = list(dict.fromkeys((each.source, each.workers) for each in reports))
    loads = list(dict.fromkeys(each.load for each in reports))
    policies = list(dict.fromkeys(each.policy for each in reports))
    figure = Figure(figsize=(2.6 * len(loads) + 1.4, 2.2 * len(rows) + 0.4), layout="constrained")
    panels = figure.subplots(len(rows), len(loads), squeeze=False)
    for (source, workers), line in zip(rows, panels, strict=True):
        for load, panel in zip(loads, line, strict=True):
            panel.set_title(f"{source}, {workers} workers, load {load:g}", fontsize=8)
            panel.tick_params(labelsize=7, which="both")
            panel.grid(visible=True, linewidth=0.3)
            for each in reports:
                if (each.source, each.workers, each.load) == (source, workers, load):
                    number = policies.index(each.policy)
                    panel.plot(
                        each.ttft_p99_s,
                        each.hit_rate,
                        MARKERS[number % len(MARKERS)],
                        color=f"C{number}",
                        label=each.policy,
                    )
            panel.set_xlim(left=0)
            panel.set_ylim(bottom=0)
    figure.supxlabel("time to the first token, p99, seconds", fontsize=8)
    figure.supylabel("cache hit rate", fontsize=8)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8)
    figure.savefig(path, format="png", dpi=80)
