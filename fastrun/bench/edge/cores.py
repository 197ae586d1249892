"""Which cores run what is measured, and which all else; Linux only."""

import os
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec


class Cores(msgspec.Struct, frozen=True):
    """Sets of cores, which are the same where there is one alone."""

    measured: AbstractSet[int]
    others: AbstractSet[int]


def divided(available: AbstractSet[int]) -> Cores:
    """Keep the last core for what is measured; pure."""
    last = max(available)
    return Cores(frozenset({last}), frozenset(available - {last} or available))


@contextmanager
def on(cores: AbstractSet[int]) -> Iterator[None]:
    """Run this thread, and what it starts, on these cores for a while."""
    former = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, former)


def move(pid: int, cores: AbstractSet[int]) -> None:
    """Let all threads of a process run on these cores only."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(thread.name), cores)


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found += family(int(child))
    return found
