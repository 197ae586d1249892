"""Runs one command that must not outlive its starter, however the starter dies.

The starter holds the write end of the guard's stdin. End of file there says that the starter is
gone, or wants the command stopped: the guard then stops it, waits for everything it left behind,
and may remove a folder. This file is run by its path, without site-packages: it has to start fast.
"""

import ctypes
import os
import select
import signal
import sys
import time

# Postgres understands these as: end all sessions and stop; stop at once; (cannot be ignored).
STOP_STEPS_S = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))
ORPHANS_S = 5.0
REMOVAL_S = 10.0

# From <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def command_line(
    command: list[str], *, owner: tuple[int, int] | None = None, remove: str | None = None
) -> list[str]:
    """The command to start with a pipe as stdin, in a session of its own, for a guarded command.

    Args:
        command: absolute path of the program, and its arguments.
        owner: user and group id to run it as; only root can ask for it.
        remove: a folder to remove once the command was stopped; kept if the command ends by itself.

    Returns:
        A command line that ends with the command's exit status (128 + n after signal n), or with
        127 if it cannot be started.
    """
    user = "" if owner is None else f"{owner[0]}:{owner[1]}"
    return [sys.executable, "-I", "-S", __file__, user, remove or "", *command]


def _prctl(option: int, value: int) -> None:
    """Ask Linux for a process attribute; elsewhere the pipe alone has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _start(command: list[str], user: str) -> int:
    """Start the command, with SIGINT as the signal that tells it of the guard's death."""
    guard = os.getpid()
    if pid := os.fork():
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if user:
            uid, gid = map(int, user.split(":"))
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGINT)  # after setuid, which clears it
        if os.getppid() == guard:
            os.execv(command[0], command)  # noqa: S606 - there is nothing for a shell to do
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


class _Family:
    """The command's process and, on Linux, all of its descendants once they are orphaned."""

    def __init__(self, command: int, wakeups: int) -> None:
        self._command = command
        self._wakeups = wakeups
        self.status: int | None = None
        self.gone = False

    def reap(self) -> None:
        while not self.gone:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.gone = True
                return
            if pid == 0:
                return
            if pid == self._command:
                self.status = os.waitstatus_to_exitcode(status)

    def _wait(self, seconds: float, *, for_all: bool) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            self.reap()
            if self.gone or (self.status is not None and not for_all):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if select.select([self._wakeups], [], [], left)[0]:
                os.read(self._wakeups, 512)

    def stop(self) -> None:
        for number, seconds in STOP_STEPS_S:
            if self.status is not None:
                return
            os.kill(self._command, number)
            os.kill(self._command, signal.SIGCONT)  # a frozen process hears only SIGKILL
            self._wait(seconds, for_all=False)

    def clear(self) -> None:
        """Wait for the orphans, and end those that stay."""
        if self._wait(ORPHANS_S, for_all=True):
            return
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as children:  # noqa: PTH123 - pathlib would double the start time
                orphans = [int(pid) for pid in children.read().split()]
        except OSError:  # not Linux: none were adopted
            return
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        self._wait(ORPHANS_S, for_all=True)


def _remove(folder: str) -> None:
    """Remove a folder in which others may still be writing their last."""
    import shutil  # noqa: PLC0415 - needed only here, at the end

    deadline = time.monotonic() + REMOVAL_S
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        if time.monotonic() > deadline:
            os.write(2, f"could not remove {folder}\n".encode())
            return
        time.sleep(0.1)


def _wakeup_pipe() -> int:
    """A descriptor that becomes readable, with the signal's number, at each signal."""
    wakeups, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the starter's to answer
    return wakeups


def main(user: str, remove: str, *command: str) -> int:
    """Guard a command until it ends, its starter is gone, or SIGTERM or SIGHUP comes."""
    starter = os.getppid()
    wakeups = _wakeup_pipe()
    # The kernel sends it also when only the starting *thread* ends: the parent's id tells.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    family = _Family(_start(list(command), user), wakeups)
    stopped = False
    while not stopped and family.status is None:
        ready = select.select([0, wakeups], [], [])[0]
        heard = os.read(wakeups, 512) if wakeups in ready else b""
        stopped = (
            (0 in ready and not os.read(0, 512))
            or signal.SIGTERM in heard
            or signal.SIGHUP in heard
            or os.getppid() != starter
        )
        family.reap()
    family.stop()
    family.clear()
    if stopped and remove:
        _remove(remove)
    status = family.status or 0
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
