"""The files of the usage spool: one set for each edge process, locked for as long as it lives.

A set is `OWNER.lock` and the segments `OWNER.00000001.log` and following. Whoever can lock a set
that is not its own has found one of a dead process.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from edge.usage_lines import Closed, Ledger, Line, Open, decode

CHUNK_BYTES = 64 << 10
"""Longer than any line, and short enough that its lines are read in half a millisecond."""

_SEGMENT = re.compile(r"([0-9a-f]+)\.(\d+)\.log")
_LOCK = re.compile(r"([0-9a-f]+)\.lock")


@dataclass(slots=True)
class Segment:
    """One file of lines."""

    number: int
    path: Path
    size: int
    """In bytes."""
    position: int = 0
    """How far it was read."""

    @property
    def is_read(self) -> bool:
        """Whether that is all of it."""
        return self.position >= self.size


class Lock:
    """The right to a set; held until released, or until the process is dead."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path

    @classmethod
    def make(cls, folder: Path, owner: str) -> "Lock":
        """Make the lock of a new set; nobody ever sees it unlocked.

        Raises:
            OSError: the folder cannot be written.
        """
        path, hidden = folder / f"{owner}.lock", folder / f".{owner}.lock"
        descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            hidden.rename(path)
        except OSError:
            os.close(descriptor)
            raise
        return cls(descriptor, path)

    @classmethod
    def of_dead(cls, folder: Path, owner: str) -> "Lock | None":
        """Take the lock of another process; None: it lives, or a third one was faster.

        Raises:
            OSError: the folder cannot be written.
        """
        path = folder / f"{owner}.lock"
        # Segments without a lock were left by a power failure.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return cls(descriptor, path)

    def remove(self) -> None:
        """Delete the lock of a set that has no segments any more."""
        self._path.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Leave the set to others. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def owners(folder: Path) -> set[str]:
    """Whose sets there are.

    Raises:
        OSError: the folder cannot be read.
    """
    names = (path.name for path in folder.iterdir())
    found = (_SEGMENT.fullmatch(name) or _LOCK.fullmatch(name) for name in names)
    return {match[1] for match in found if match}


def segment_path(folder: Path, owner: str, number: int) -> Path:
    """Where a segment of a set lies."""
    return folder / f"{owner}.{number:08d}.log"


def segments(folder: Path, owner: str) -> list[Segment]:
    """The segments of a set, oldest first.

    Raises:
        OSError: the folder cannot be read.
    """
    found = []
    for path in folder.iterdir():
        match = _SEGMENT.fullmatch(path.name)
        if match and match[1] == owner:
            found.append(Segment(int(match[2]), path, path.stat().st_size))
    return sorted(found, key=lambda segment: segment.number)


class Reader:
    """Reads a set from its beginning to where it ends now."""

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self.corrupt = 0
        """Lines that were torn or spoiled, and so were passed over."""

    @property
    def is_at_end(self) -> bool:
        """Whether all was read."""
        return all(segment.is_read for segment in self._segments)

    def lines(self) -> Iterator[Line]:
        """Read on. Whatever was taken from it is not read again.

        Raises:
            OSError: a file cannot be read.
        """
        for segment in self._segments:
            while not segment.is_read:
                yield from self._chunk(segment)

    def _chunk(self, segment: Segment) -> Iterator[Line]:
        with segment.path.open("rb") as file:
            file.seek(segment.position)
            chunk = file.read(min(CHUNK_BYTES, segment.size - segment.position))
        end = chunk.rfind(b"\n") + 1
        if end == 0:  # the rest of it is no line, nor will it become one
            self.corrupt += 1
            segment.position += len(chunk) or segment.size - segment.position
            return
        for text in chunk[:end].split(b"\n")[:-1]:
            segment.position += len(text) + 1
            line = decode(text)
            if line is not None:
                yield line
            elif text:
                self.corrupt += 1


class Orphan:
    """The set of a dead process, ours to deliver."""

    def __init__(self, lock: Lock, segments: list[Segment]) -> None:
        self._lock = lock
        self._segments = segments
        self._reader = Reader(segments)
        self._ledger = Ledger()
        self._batch: list[Closed] = []

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(each.size for each in self._segments)

    @property
    def corrupt(self) -> int:
        """Lines that were passed over."""
        return self._reader.corrupt

    def next_batch(self, most: int) -> list[Closed]:
        """Its next records; the same again until they are confirmed. Empty: that was all.

        Raises:
            OSError: a file cannot be read.
        """
        if not self._batch:
            self._batch = list(islice(self._records(), most))
        return self._batch

    def confirm(self) -> None:
        """The batch was delivered."""
        self._batch = []

    def left_open(self) -> list[Open]:
        """Once all is delivered: the requests whose end it does not tell."""
        return list(self._ledger.open.values())

    def remove(self) -> None:
        """Delete it.

        Raises:
            OSError: the folder cannot be written.
        """
        for segment in self._segments:
            segment.path.unlink(missing_ok=True)
        self._lock.remove()

    def release(self) -> None:
        """Leave it to others."""
        self._lock.release()

    def _records(self) -> Iterator[Closed]:
        for line in self._reader.lines():
            record = self._ledger.take(line)
            if record is not None:
                yield record


def orphan(folder: Path, ours: str) -> Orphan | None:
    """Take over a set whose process is dead; None: there is none.

    Args:
        folder: the spool.
        ours: the owner that we are.

    Raises:
        OSError: the folder cannot be read or written.
    """
    for owner in sorted(owners(folder) - {ours}):
        lock = Lock.of_dead(folder, owner)
        if lock is None:
            continue
        found = segments(folder, owner)
        if found:
            return Orphan(lock, found)
        lock.remove()
    return None
