"""How much memory a worker may take before it is replaced: what grows for weeks ends in a kill."""

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


class MemoryBound:
    """A bound for the memory of this process and its children."""

    def __init__(self, limit: int | None, *, proc: Path = PROC) -> None:
        """Set the bound, in bytes; None for none."""
        self._limit = limit
        self._proc = proc

    @property
    def limit(self) -> int | None:
        """The bound in bytes."""
        return self._limit

    def exceeded_by(self) -> int:
        """Return how many bytes are over the bound; 0 while none are."""
        if self._limit is None:
            return 0
        return max(0, resident(self._proc) - self._limit)


def own_bound(held: int, available: int) -> int | None:
    """Return a bound for what was just loaded: half of what is left may be grown into.

    Args:
        held: bytes that are held now.
        available: bytes that the machine, or the container, has left; 0 if that is not known.
    """
    return held + available // 2 if available else None


def resident(proc: Path = PROC) -> int:
    """Return the bytes that this process and its children hold; 0 where there is no /proc.

    What they share counts for each of them: it is growth that is looked for.
    """
    return sum(_resident(proc / str(pid)) for pid in _tree(proc, os.getpid()))


def available(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Return the bytes that the machine, or the container, has left; 0 if that is not known."""
    known = [number for number in (_machine(proc), _container(cgroup)) if number is not None]
    return min(known, default=0)


def _tree(proc: Path, pid: int) -> Iterator[int]:
    yield pid
    children = ""
    with suppress(OSError):  # it may end at any moment
        for task in (proc / str(pid) / "task").iterdir():
            children += (task / "children").read_text(encoding="ascii")
    for child in children.split():
        yield from _tree(proc, int(child))


def _resident(process: Path) -> int:
    try:
        pages = int((process / "statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0
    return pages * resource.getpagesize()


def _machine(proc: Path) -> int | None:
    with suppress(OSError):
        for line in (proc / "meminfo").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) << 10
    return None


def _container(cgroup: Path) -> int | None:
    """Read version 2 of control groups; a container sees its own at the root."""
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - used)
