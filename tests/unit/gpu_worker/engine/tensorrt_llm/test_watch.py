"""When an engine counts as dead."""

import threading
from types import SimpleNamespace

import pytest

from gpu_worker.engine.tensorrt_llm.watch import Limits, Progress, Watch, fatal_error

LIMITS = Limits(stalled_s=30, look_s=0.001, check_interval_s=2, check_s=10)


class Clock:
    """Moves when told to."""

    now = 100.0

    def __call__(self):
        return self.now


class Llm:
    """As healthy as it is told to be."""

    def __init__(self, check=lambda: True):
        self.checks = 0
        self.check = check
        self._executor = SimpleNamespace(_fatal_error=None)

    def _check_health(self):
        self.checks += 1
        return self.check()


class Watched:
    """An engine that is watched by a clock of the test's own."""

    def __init__(self, llm):
        self.clock, self.llm = Clock(), llm
        self.progress = Progress(clock=self.clock)
        self.deaths = []
        self.died = threading.Event()
        self.watch = Watch(
            llm, self.progress, limits=LIMITS, on_death=self.on_death, clock=self.clock
        )

    def on_death(self, reason):
        self.deaths.append(reason)
        self.died.set()

    def until(self, condition):
        for _ in range(10_000):
            if condition():
                return
            self.died.wait(0.001)
        raise AssertionError


@pytest.fixture
def watch():
    made = []

    def make(llm):
        made.append(Watched(llm))
        return made[-1]

    yield make
    for each in made:
        each.watch.close()


def test_progress_is_wanted_only_while_something_is_awaited():
    """An idle engine is not stalled, and its first request has the whole time."""
    clock = Clock()
    progress = Progress(clock=clock)
    clock.now += 1000
    assert progress.idle_s == 0
    progress.began()
    assert progress.idle_s == 0
    clock.now += 20
    progress.began()
    assert progress.idle_s == 20
    progress.moved()
    clock.now += 5
    assert progress.idle_s == 5
    progress.ended()
    clock.now += 7
    assert progress.idle_s == 7
    progress.ended()
    assert progress.idle_s == 0


def test_an_engine_may_be_given_more_time():
    """Its first token takes long."""
    clock = Clock()
    progress = Progress(clock=clock)
    progress.patience_s = 300
    progress.began()
    clock.now += 290
    assert progress.idle_s == 0
    clock.now += 20
    assert progress.idle_s == 10
    progress.patience_s = 0
    assert progress.idle_s == 310


def test_a_stalled_engine_is_dead(watch):
    """Nothing for anybody for so long is death."""
    watched = watch(Llm())
    watched.progress.began()
    watched.clock.now += 29
    checks = watched.llm.checks
    watched.until(lambda: watched.llm.checks > checks)
    assert not watched.deaths
    watched.clock.now += 2
    watched.until(watched.died.is_set)
    assert watched.deaths == ["nothing has come of its requests for 31 s"]


def test_a_fatal_error_is_death(watch):
    """What the executor has noted is seen at once."""
    watched = watch(Llm())
    watched.llm._executor._fatal_error = RuntimeError("rank 3")
    watched.until(watched.died.is_set)
    assert watched.deaths == ["its executor reports RuntimeError"]


def raising():
    raise ValueError


@pytest.mark.parametrize(
    ("check", "reason"),
    [(lambda: False, "its health check fails"), (raising, "its health check raises ValueError")],
)
def test_a_failing_health_check_is_death(watch, check, reason):
    """False and an exception mean the same."""
    watched = watch(Llm(check))
    watched.clock.now += 2
    watched.until(watched.died.is_set)
    assert watched.deaths == [reason]


def test_a_health_check_that_hangs_is_death(watch):
    """It is asked in a thread of its own, which may never come back."""
    release = threading.Event()
    watched = watch(Llm(lambda: release.wait(20)))
    watched.clock.now += 2
    watched.until(lambda: watched.llm.checks)
    watched.clock.now += 11
    watched.until(watched.died.is_set)
    assert watched.deaths == ["its health check has not ended for 10 s"]
    release.set()


def test_a_closed_watch_tells_nothing(watch):
    """Whatever happens while the library is shut down is expected."""
    watched = watch(Llm())
    watched.watch.close()
    watched.llm._executor._fatal_error = RuntimeError("shut down")
    assert not watched.died.wait(0.05)


def test_only_errors_are_fatal():
    """Other versions keep other things there, or nothing."""
    assert fatal_error(SimpleNamespace()) is None
    assert fatal_error(SimpleNamespace(_executor=None)) is None
    assert fatal_error(SimpleNamespace(_executor=SimpleNamespace(_fatal_error=False))) is None
