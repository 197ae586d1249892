import os
import select
import signal
import subprocess
import sys

import pytest

from fastrun.local import command_guard


class Guarded:
    """A guarded command; the pipe that it dies with; and a pipe that all it starts holds open."""

    def __init__(self, command: str) -> None:
        lifeline, self._starter = os.pipe()
        self._held, holding = os.pipe()
        self._process = subprocess.Popen(
            command_guard.command_line(lifeline, command),
            stdin=subprocess.DEVNULL,
            stdout=holding,
            pass_fds=(lifeline,),
        )
        os.close(lifeline)
        os.close(holding)

    def started(self) -> None:
        """Wait until the command has written a line."""
        assert os.read(self._held, 100)

    def status(self) -> int:
        return self._process.wait(20)

    def ask(self) -> None:
        self._process.terminate()

    def lose_starter(self) -> None:
        os.close(self._starter)
        self._starter = -1

    def nothing_left(self) -> bool:
        """Whether nobody can write any more: neither the command nor what it has started."""
        while select.select([self._held], [], [], 20)[0]:
            if not os.read(self._held, 4096):
                return True
        return False

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for descriptor in (self._held, *([self._starter] if self._starter >= 0 else [])):
            os.close(descriptor)


@pytest.fixture
def guarded():
    made = []

    def make(command):
        made.append(Guarded(command))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(
    ("command", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 128 + signal.SIGTERM), ("nosuchcmd-", 127)],
)
def test_status(guarded, command, status):
    """The guard ends with the command's own status, 128 + n after signal n."""
    assert guarded(f"{command} 2>/dev/null").status() == status


@pytest.mark.parametrize(
    "leftover",
    [
        "sleep 60 &",
        "(trap '' TERM; sleep 60) &",
        pytest.param(
            "setsid sleep 60 &",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of orphans"),
        ),
    ],
    ids=["plain", "stubborn", "in its own session"],
)
def test_leftovers_end_with_the_command(guarded, leftover):
    """What the command has started in the background does not outlive it."""
    command = guarded(f"{leftover} exit 4")

    assert command.status() == 4
    assert command.nothing_left()


def test_starter_is_gone(guarded):
    """When the starter dies, so do the command and all it has started."""
    command = guarded("sleep 60 & echo started; sleep 60")
    command.started()
    command.lose_starter()

    assert command.status() == 128 + signal.SIGTERM
    assert command.nothing_left()


def test_asked_to_end(guarded):
    """A command that is asked to end may first tidy up."""
    command = guarded("trap 'exit 9' TERM; echo started; while :; do sleep 0.1; done")
    command.started()
    command.ask()

    assert command.status() == 9
    assert command.nothing_left()
