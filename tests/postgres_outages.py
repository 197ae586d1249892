"""Freezes and finds the processes of an embedded Postgres, for tests."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from fastrun.local.postgres import Postgres


def postmaster(server: Postgres) -> int:
    """The process id of the server's first process."""
    return int((server.folder / "data" / "postmaster.pid").read_text().splitlines()[0])


@contextmanager
def frozen(server: Postgres) -> Iterator[None]:
    """Stop all processes of a server, and let them go on afterwards."""
    leader = postmaster(server)
    os.kill(leader, signal.SIGSTOP)
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, check=True)
    pairs = [map(int, line.split()) for line in listed.stdout.splitlines()]
    pids = [leader, *(pid for pid, parent in pairs if parent == leader)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
