"""`fastrun bench placement`: what it simulates, and how it shows that."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from fastrun.bench.placement.comparison import NAMES, Fleet, TooFewError, compare
from fastrun.bench.placement.dispatch import Waiting
from fastrun.bench.placement.generator import Conversations, generate
from fastrun.bench.placement.plot import PlotError, draw
from fastrun.bench.placement.report import Report
from fastrun.bench.placement.trace import Request, TraceError, part, read_trace
from fastrun.bench.placement.workers import Machine
from fastrun.cli.errors import CommandError
from fastrun.cli.output import print_columns, print_json

TITLES = (
    "requests", "workers", "load", "policy", "hit rate", "ttft p50 s", "ttft p99 s",
    "wait p50 s", "wait p99 s", "fairness", "refused",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is compared: each fleet under each load of each source, by each policy."""

    trace: Path | None
    part: str
    seeds: list[int]
    workers: list[int]
    loads: list[float]
    policies: list[str] | None
    accounts: int
    requests: int
    """To be made up."""

    def sources(self) -> Iterator[tuple[str, int, list[Request]]]:
        """Return the requests, with their name and the seed of all else.

        Raises:
            CommandError: the trace cannot be read.
        """
        shape = Conversations(accounts=self.accounts, requests=self.requests)
        for seed in self.seeds:
            if self.trace is None:
                yield f"seed {seed}", seed, generate(shape, seed)
                continue
            try:
                with self.trace.open("rb") as lines:
                    requests = read_trace(lines, accounts=self.accounts, seed=seed)
            except (OSError, TraceError) as error:
                raise CommandError(f"{self.trace}: {error}") from error
            yield self.trace.stem, seed, part(requests, self.part)


def compare_all(scenario: Scenario) -> Iterator[Report]:
    """Run all that a scenario asks for.

    Raises:
        CommandError: there is no such policy, the trace cannot be read, or it is too short.
    """
    policies = scenario.policies or list(NAMES)
    for each in policies:
        if each not in NAMES:
            raise CommandError(f"there is no policy '{each}'; there are {', '.join(NAMES)}")
    # The scheduler says of each worker that it has come.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for source, seed, requests in scenario.sources():
        for workers in scenario.workers:
            fleet = Fleet(workers, Machine(), Waiting(), seed)
            try:
                yield from compare(
                    fleet, requests, source=source, loads=scenario.loads, policies=policies
                )
            except TooFewError as error:
                raise CommandError(f"{error}: ask for fewer workers or more requests") from error


def show(reports: Iterable[Report], *, plot: Path | None, as_json: bool) -> None:
    """Print all, and draw them if that is asked for.

    Raises:
        CommandError: nothing can be drawn here.
    """
    done = list(reports)
    if as_json:
        print_json([msgspec.structs.asdict(each) for each in done])
    else:
        print_columns(TITLES, [_row(each) for each in done], right=TITLES[4:])
    if plot is not None:
        try:
            draw(done, plot)
        except (OSError, PlotError) as error:
            raise CommandError(f"no plot: {error}") from error


def _row(each: Report) -> tuple[object, ...]:
    return (
        each.source,
        each.workers,
        each.load,
        each.policy,
        f"{each.hit_rate:.3f}",
        f"{each.ttft_p50_s:.2f}",
        f"{each.ttft_p99_s:.2f}",
        f"{each.wait_p50_s:.2f}",
        f"{each.wait_p99_s:.2f}",
        f"{each.fairness:.3f}",
        each.refused,
    )
