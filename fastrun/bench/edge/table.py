"""Figures as cells, for a terminal and for a page; pure."""

from collections.abc import Iterator, Sequence

from fastrun.bench.edge.figures import Figures, ratio

TITLES = (
    "load", "target", "cpu us", "of fastrun", "unit", "units/s", "core", "ttft p50 ms",
    "ttft p99 ms", "delay p50 ms", "delay p99 ms", "answer p50 ms", "answer p99 ms", "mib",
    "worker us", "failed",
)  # fmt: skip
TEXTS = ("load", "target", "unit")
"""Titles of columns that hold no numbers."""


def rows(figures: Sequence[Figures]) -> Iterator[tuple[str, ...]]:
    """Return a cell for each title, of each measurement."""
    for each in figures:
        compared = ratio(each, figures, "fastrun")
        yield (
            each.scenario,
            each.target,
            f"{each.cpu_us:,.1f}" if each.cpu_us < 1000 else f"{each.cpu_us:,.0f}",
            "-" if compared is None else f"{compared:.2f}",
            each.unit,
            f"{each.per_s:,.0f}",
            f"{each.busy:.0%}",
            _ms(each.first_token_p50_us),
            _ms(each.first_token_p99_us),
            _ms(each.delay_p50_us),
            _ms(each.delay_p99_us),
            _ms(each.latency_p50_us),
            _ms(each.latency_p99_us),
            f"{each.begin_mib:.0f} to {each.end_mib:.0f}",
            "-" if each.worker_us is None else f"{each.worker_us:,.1f}",
            str(each.failures),
        )


def _ms(us: float | None) -> str:
    return "-" if us is None else f"{us / 1000:,.2f}"
