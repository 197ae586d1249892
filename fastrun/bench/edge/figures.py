"""What runs come to: costs for each token or request, as medians; pure."""

import statistics
from collections.abc import Callable, Iterable, Sequence

import msgspec

from fastrun.bench.edge.load import Run, Times
from fastrun.bench.edge.scenarios import Scenario


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario at one target; medians of several runs, each within its window."""

    scenario: str
    target: str
    unit: str
    """`token` of a stream, or `request` where nothing is streamed."""
    runs: int
    cpu_us: float
    """That the target ran for each unit, with all of its threads and children."""
    per_s: float
    """Units."""
    busy: float
    """What part of a core the target took."""
    first_token_p50_us: float | None
    first_token_p99_us: float | None
    delay_p50_us: float | None
    """From the moment a token is made to the moment a client has it."""
    delay_p99_us: float | None
    latency_p50_us: float | None
    """Of whole answers; None: none ended."""
    latency_p99_us: float | None
    worker_us: float | None
    """That the worker ran for each unit; None: there is none."""
    begin_mib: float
    """Resident memory of the target."""
    end_mib: float
    failures: int
    """Of all runs: connections that broke off, refusals and answers that were cut."""
    load_average: float
    """Of the machine in the minute before the first run."""


def figures(
    scenario: Scenario, target: str, runs: Sequence[Run], *, load_average: float
) -> Figures:
    """Put runs of one scenario at one target together.

    Args:
        scenario: where it is streamed, tokens are counted, else requests.
        target: its name.
        runs: at least one.
        load_average: see Figures.
    """

    def units(run: Run) -> int:
        return max(run.tokens if scenario.streamed else run.requests, 1)

    def median(value: Callable[[Run], float]) -> float:
        return statistics.median(map(value, runs))

    return Figures(
        scenario=scenario.name,
        target=target,
        unit="token" if scenario.streamed else "request",
        runs=len(runs),
        cpu_us=median(lambda run: 1e6 * run.processes["measured"].ran_s / units(run)),
        per_s=median(lambda run: units(run) / run.seconds),
        busy=median(lambda run: run.processes["measured"].ran_s / run.seconds),
        first_token_p50_us=_median_of(runs, lambda run: run.first_token_us, 0.5),
        first_token_p99_us=_median_of(runs, lambda run: run.first_token_us, 0.99),
        delay_p50_us=_median_of(runs, lambda run: run.delay_us, 0.5),
        delay_p99_us=_median_of(runs, lambda run: run.delay_us, 0.99),
        latency_p50_us=_median_of(runs, lambda run: run.latency_us, 0.5),
        latency_p99_us=_median_of(runs, lambda run: run.latency_us, 0.99),
        worker_us=median(lambda run: 1e6 * run.processes["worker"].ran_s / units(run))
        if "worker" in runs[0].processes
        else None,
        begin_mib=median(lambda run: run.processes["measured"].resident_kib[0] / 1024),
        end_mib=median(lambda run: run.processes["measured"].resident_kib[1] / 1024),
        failures=sum(run.failures for run in runs),
        load_average=load_average,
    )


def ratio(each: Figures, all_of_them: Iterable[Figures], base: str) -> float | None:
    """Return what a unit costs here, compared with another target under the same load.

    Args:
        each: what is compared.
        all_of_them: of one measurement.
        base: the name of the other target; None is returned where it was not measured.
    """
    for other in all_of_them:
        if (other.scenario, other.target) == (each.scenario, base) and other.cpu_us:
            return each.cpu_us / other.cpu_us
    return None


def _median_of(runs: Sequence[Run], times: Callable[[Run], Times | None], q: float) -> float | None:
    found = [each for run in runs if (each := times(run)) is not None]
    values = [each.p50 if q == 0.5 else each.p99 for each in found]
    return statistics.median(values) if values else None
