"""What a process has had of its processors, and what it had to wait for them; Linux only."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec


class ProcessorTime(msgspec.Struct, frozen=True):
    """Seconds of a process."""

    ran_s: float
    """Of all its threads."""
    main_ran_s: float
    """Of its first thread alone."""
    main_waited_s: float
    """That one could have run, and others did."""

    def __sub__(self, earlier: "ProcessorTime") -> "ProcessorTime":
        """Return what has passed since."""
        return ProcessorTime(
            self.ran_s - earlier.ran_s,
            self.main_ran_s - earlier.main_ran_s,
            self.main_waited_s - earlier.main_waited_s,
        )


def of_process(pid: int) -> ProcessorTime:
    """Return it up to now."""
    ran = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # it has just ended
            ran += _schedstat(thread)[0]
    main_ran, main_waited = _schedstat(Path(f"/proc/{pid}/task/{pid}"))
    return ProcessorTime(ran / 1e9, main_ran / 1e9, main_waited / 1e9)


def _schedstat(thread: Path) -> tuple[int, int]:
    """Return the nanoseconds that a thread has run, and has waited for a core."""
    ran, waited, _ = (thread / "schedstat").read_text().split()
    return int(ran), int(waited)


def resident_mib(pid: int) -> float:
    """Return how much memory of a process is resident."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def apart() -> Iterator[None]:
    """Give the last core to what is started within, and the others to this process ever after.

    With one core alone all share it.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-1:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores[:-1] or cores)
