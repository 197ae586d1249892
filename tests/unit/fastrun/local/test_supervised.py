import asyncio
import io

import pytest

from fastrun.local.errors import LocalError
from fastrun.local.output import Output
from fastrun.local.supervised import (
    BACKOFF_S,
    KILL_AFTER_S,
    STEADY_S,
    Backoff,
    Plan,
    keep,
    stop_limit_s,
)

EDGE = Plan(name="edge 2", module="edge", service="edge", stop_s=5)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Crashing:
    """A part that ends at once, cannot start again the first time, and then runs."""

    name = "edge"

    def __init__(self, failure):
        self.failure = failure
        self.starts = 0
        self.steady = asyncio.Event()

    async def start(self):
        self.starts += 1
        if self.starts == 1:
            raise self.failure
        self.steady.set()

    async def wait(self):
        if self.steady.is_set():
            await asyncio.Event().wait()
        return "SIGSEGV"


def test_waits_grow():
    """Who dies again and again is started later and later, up to a bound."""
    backoff = Backoff(Clock())

    assert [backoff.next_s() for _ in range(len(BACKOFF_S) + 1)] == [*BACKOFF_S, BACKOFF_S[-1]]


def test_waits_begin_anew():
    """Who has run for long is started again at once."""
    clock = Clock()
    backoff = Backoff(clock)
    backoff.next_s()
    backoff.started()
    clock.now = STEADY_S

    assert backoff.next_s() == BACKOFF_S[0]


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (LocalError("edge could not start: port 8000 is in use"), "port 8000 is in use"),
        (KeyError("ports"), "KeyError('ports')"),
    ],
    ids=["expected", "a fault of ours"],
)
async def test_started_again(monkeypatch, failure, said):
    """A part that ends is started again until it runs, and each step is said in one line."""
    monkeypatch.setattr("fastrun.local.supervised.BACKOFF_S", (0.0,))
    stream, part = io.StringIO(), Crashing(failure)
    keeping = asyncio.create_task(keep(part, Output(stream)))
    await part.steady.wait()
    keeping.cancel()
    await asyncio.wait({keeping})

    assert stream.getvalue().splitlines()[:2] == [
        "edge ended with SIGSEGV: starting it again in 0 s",
        f"edge could not start: {said}: starting it again in 0 s",
    ]


def test_stop_limit():
    """All are stopped quickly, unless somebody has chosen how long a service may take."""
    assert stop_limit_s(EDGE, {"FASTRUN_WORKER_GRACE_S": "60"}) == 5
    assert stop_limit_s(EDGE, {"FASTRUN_EDGE_GRACE_S": "60"}) == 60 + KILL_AFTER_S
    assert stop_limit_s(EDGE, {"FASTRUN_EDGE_GRACE_S": "long"}) == 5
