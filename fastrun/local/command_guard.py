"""Runs a shell command of `fastrun up --exec`, and ends all that it started when it ends.

It ends the command too when its starter asks (SIGTERM) or dies, which a pipe tells. This file is
run by its path, without site-packages: it has to start fast.
"""

import ctypes
import os
import select
import signal
import sys
import time

TERM_S = 5.0  # what the command may take to end when it is asked to
LEFTOVERS_S = 1.0  # what its own children may take once it has ended

# From <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def command_line(pipe: int, command: str) -> list[str]:
    """The command line of this guard.

    Args:
        pipe: a descriptor that it inherits and that ends with the starter.
        command: what `sh -c` runs, with the starter's own stdin, stdout and stderr.

    Returns:
        A command line that ends with the command's exit status, 128 + n after signal n.
    """
    return [sys.executable, "-I", "-S", __file__, str(pipe), command]


def _prctl(option: int, value: int) -> None:
    """Ask Linux for a process attribute; elsewhere the process group has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _start(command: str, *, own_group: bool) -> int:
    if pid := os.fork():
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if own_group:
            os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execv("/bin/sh", ["sh", "-c", command])  # noqa: S606 - the shell is what was asked for
    finally:
        os._exit(127)


class _Family:
    """The command and, on Linux, everything it has started, once that is orphaned."""

    def __init__(self, command: int, wakeups: int, *, own_group: bool) -> None:
        self._command = command
        self._wakeups = wakeups
        self._own_group = own_group
        self.status: int | None = None
        self._gone = False

    def reap(self) -> None:
        while not self._gone:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._gone = True
                return
            if pid == 0:
                return
            if pid == self._command:
                self.status = os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """End the command if it runs, and then all that it leaves behind."""
        if self.status is None:
            self._signal(signal.SIGTERM)
            self._wait(TERM_S, for_all=False)
        self._signal(signal.SIGTERM)
        self._wait(LEFTOVERS_S, for_all=True)
        while not self._gone and self._signal(signal.SIGKILL):
            self._wait(LEFTOVERS_S, for_all=True)

    def _signal(self, number: signal.Signals) -> bool:
        """Signal all that is known to live; return whether anything may have heard it."""
        heard = False
        # A group outlives its leader, and its number is not given away as long as it does.
        groups = [self._command] if self._own_group else []
        for process in [*(-group for group in groups), *self._children()]:
            try:
                os.kill(process, number)
                heard = True
            except (ProcessLookupError, PermissionError):
                continue
        return heard

    def _children(self) -> list[int]:
        """Our own children: the command, and on Linux what was orphaned below it."""
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as children:  # noqa: PTH123 - pathlib would double the start time
                return [int(pid) for pid in children.read().split()]
        except OSError:  # not Linux
            return [self._command] if self.status is None else []

    def _wait(self, seconds: float, *, for_all: bool) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self.reap()
            left = deadline - time.monotonic()
            if self._gone or (self.status is not None and not for_all) or left <= 0:
                return
            if select.select([self._wakeups], [], [], left)[0]:
                os.read(self._wakeups, 512)


def _wakeup_pipe() -> int:
    """A descriptor that becomes readable, with the signal's number, at each signal."""
    wakeups, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command and for our starter
    return wakeups


def main(pipe: int, command: str) -> int:
    """Run the command to its end, or to that of whoever started it."""
    wakeups = _wakeup_pipe()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # At a terminal the command stays in the group that has it, so that it can read from there.
    own_group = not os.isatty(0)
    family = _Family(_start(command, own_group=own_group), wakeups, own_group=own_group)
    asked = False
    while not asked and family.status is None:
        ready = select.select([pipe, wakeups], [], [])[0]
        heard = os.read(wakeups, 512) if wakeups in ready else b""
        asked = pipe in ready or signal.SIGTERM in heard or signal.SIGHUP in heard
        family.reap()
    family.end()
    status = family.status if family.status is not None else -signal.SIGKILL
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
