"""Draws what a token or a request costs, and where."""

from collections.abc import Sequence
from pathlib import Path

from fastrun.bench.edge.figures import Figures


class PlotError(Exception):
    """Nothing can be drawn; the message says what to install."""


def draw(figures: Sequence[Figures], path: Path) -> None:
    """Write a PNG: a panel for each load, and in it a bar for each target. Shorter is better.

    The scale is logarithmic, since some targets cost a thousand times what others do.

    Raises:
        PlotError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise PlotError("install fastrun[plot] to draw") from error
    loads = list(dict.fromkeys(each.scenario for each in figures))
    columns = min(len(loads), 3)
    lines = -(-len(loads) // columns)
    figure = Figure(figsize=(3.4 * columns, 1.9 * lines + 0.3), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flat
    for load, panel in zip(loads, panels, strict=False):
        shown = [each for each in figures if each.scenario == load][::-1]
        panel.set_title(f"{load}: CPU us per {shown[0].unit}", fontsize=8)
        bars = panel.barh(
            [each.target for each in shown],
            [each.cpu_us for each in shown],
            color=["C1" if each.target == "fastrun" else "C0" for each in shown],
        )
        panel.bar_label(bars, fmt=_label, fontsize=7, padding=2)
        panel.set_xscale("log")
        panel.set_xlim(1, 8 * max(each.cpu_us for each in shown))
        panel.tick_params(labelsize=7)
    for panel in panels[len(loads) :]:
        panel.set_visible(False)
    figure.savefig(path, format="png", dpi=100)


def _label(us: float) -> str:
    return f"{us:,.0f}" if us >= 100 else f"{us:.1f}"
