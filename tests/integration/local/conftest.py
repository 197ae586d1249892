"""What the tests of processes share."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that user nobody can reach, which tmp_path is not."""
    path = Path(tempfile.mkdtemp(prefix="fastrun-test-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Wait for a condition; a test that waits in vain fails."""

    def wait(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.01)

    return wait


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Whether a process runs; one that only waits to be reaped does not."""

    def check(pid: int) -> bool:
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout
        return bool(state.strip()) and not state.startswith("Z")

    return check


@pytest.fixture
def running() -> Callable[[Path], list[str]]:
    """The command lines of all processes that mention a path."""

    def check(path: Path) -> list[str]:
        lines = subprocess.run(
            ["ps", "-A", "-ww", "-o", "pid=,args="], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        return [line for line in lines if str(path) in line and int(line.split()[0]) != os.getpid()]

    return check
