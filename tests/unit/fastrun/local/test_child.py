import os
import signal
import sys

import pytest

from fastrun.local.child import Child, Lifeline, told
from fastrun.local.errors import LocalError
from fastrun.local.log_file import LogFile


@pytest.fixture
def edge(tmp_path):
    """One that was not started."""
    lifeline = Lifeline()
    log = LogFile(tmp_path / "edge.log")
    yield Child("edge", ["-m", "edge"], {}, lifeline=lifeline, log=log, on_line=lambda _: None)
    lifeline.close()


async def test_no_process(edge, monkeypatch):
    """Where there can be no process it is said of whom, and why, in one sentence."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(LocalError, match=r"^edge could not start: No such file or directory$"):
        await edge.start(1)
    with pytest.raises(LocalError, match=r"^edge could not start: No such file or directory$"):
        await edge.run()


async def test_no_files(edge, monkeypatch):
    """The same where no file can be opened any more."""

    def too_many():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pipe", too_many)
    with pytest.raises(LocalError, match=r"^edge could not start: Too many open files$"):
        await edge.start(1)


def test_told():
    """An exit is said as people say it, with a hint where memory may be short."""
    assert told(3) == "status 3"
    assert told(-signal.SIGSEGV) == "SIGSEGV"
    assert told(-signal.SIGKILL) == "SIGKILL (is there enough memory?)"
