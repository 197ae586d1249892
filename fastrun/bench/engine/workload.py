"""What every engine is given, and what comes of it."""

import statistics

import msgspec

TEMPERATURE, TOP_P = 0.8, 0.95


class Workload(msgspec.Struct, frozen=True):
    """Streams that begin at once, each with a prompt of its own, to exactly so many tokens."""

    streams: int
    tokens: int
    first_seed: int = 0

    @property
    def seeds(self) -> list[int]:
        """One for each stream."""
        return list(range(self.first_seed, self.first_seed + self.streams))


class Run(msgspec.Struct, frozen=True):
    """What a workload took."""

    tokens: int
    wall_s: float
    cpu_s: float
    """Of all threads of the process."""
    first_token_s: list[float]
    """Of each stream, from the beginning of all."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The median of several runs."""

    engine: str
    streams: int
    tokens_per_cpu_s: float
    tokens_per_s: float
    first_token_ms: float
    """The median stream's."""


def question(seed: int) -> str:
    """Make a prompt that no other stream has."""
    return f"Tell me a long story, number {seed}, about a dog and a river."


def figures(engine: str, streams: int, runs: list[Run]) -> Figures:
    """Take the median of each figure."""
    return Figures(
        engine=engine,
        streams=streams,
        tokens_per_cpu_s=statistics.median(run.tokens / run.cpu_s for run in runs),
        tokens_per_s=statistics.median(run.tokens / run.wall_s for run in runs),
        first_token_ms=statistics.median(
            1000 * statistics.median(run.first_token_s) for run in runs
        ),
    )
