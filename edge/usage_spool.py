"""The write-ahead spool of this process: what a request used is on disk before anyone is asked.

Each line is one write(2), which a killed process does not take back; for the case that the power
fails, sync() is called now and then. A segment is deleted when all records in it are delivered;
what is open then is written again before.
"""

import asyncio
import os
from itertools import islice
from pathlib import Path

import msgspec
import structlog

from edge.usage_files import Lock, Orphan, Reader, Segment, orphan, segment_path
from edge.usage_lines import Closed, Ending, Line, Open, Started, Status, Void, encode, started

log = structlog.get_logger()

SEGMENT_BYTES = 1 << 20
"""A longer segment is followed by the next one."""


class SpoolError(Exception):
    """Nothing can be promised to be recorded; the message says why."""


class Spool:
    """One set of files, and that of a dead process which was taken over."""

    def __init__(
        self, folder: Path, owner: str, *, limit_bytes: int, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        """Prepare; repair() opens it.

        Args:
            folder: where the sets of all edges of this volume lie.
            owner: hexadecimal, new at every start of the process.
            limit_bytes: beyond it no request is begun.
            segment_bytes: see SEGMENT_BYTES.
        """
        self._folder = folder
        self._owner = owner
        self._limit_bytes = limit_bytes
        # All segments but the last can go, so the last one must not fill the spool by itself.
        self._segment_bytes = min(segment_bytes, limit_bytes // 2)
        self._lock: Lock | None = None
        self._orphan: Orphan | None = None
        self._segments: list[Segment] = []
        self._bytes = 0
        self._reader = Reader(self._segments)
        self._descriptor = -1
        """Of the last segment."""
        self._unsynced: list[int] = []
        """Of former segments; sync() closes them."""
        self._is_synced = True
        self._is_torn = False
        """The last write took a part of a line only."""
        self._open: dict[str, tuple[Open, int]] = {}
        """With the number of the segment in which it was last written."""
        self._asked: set[str] = set()
        """Those of the open ones that are over."""
        self._batch: list[Closed] = []
        self._unwritten: list[Line] = []
        """Ends of requests for which there was no room."""
        self._failure: str | None = "it was not opened yet"

    @property
    def size(self) -> int:
        """In bytes, with what was taken over."""
        return self._bytes + (self._orphan.size if self._orphan else 0)

    @property
    def problem(self) -> str | None:
        """Why no request can be begun, in a sentence; None: it can."""
        if self._failure is not None:
            return f"usage cannot be recorded in {self._folder}: {self._failure}"
        if self.size >= self._limit_bytes:
            return f"{self.size} bytes of usage in {self._folder} wait for the auth service"
        return None

    @property
    def corrupt(self) -> int:
        """Lines of our own that could not be read back."""
        return self._reader.corrupt

    # What happens to requests.

    def begin(self, request: Open) -> None:
        """Promise a record, before the first Start of a request is sent.

        Raises:
            SpoolError: nothing was promised.
        """
        if self.problem is not None:
            raise SpoolError(self.problem)
        self._open[request.request_id] = (request, self._append_now(request))

    def started(self, line: Started) -> None:
        """Note a further start of an open request, before it is sent.

        Raises:
            SpoolError: it must not be sent.
        """
        self._append_now(line)
        request, number = self._open[line.request_id]
        self._open[line.request_id] = (started(request, line), number)

    def end(self, line: Closed | Void) -> None:
        """Keep the promise: what cannot be written now is written later."""
        self._append_sometime(line)
        self._open.pop(line.request_id, None)
        self._asked.discard(line.request_id)

    def ask(self, request: Open) -> None:
        """Leave it to the schedulers whether a request that is over ran, and what it used."""
        number = self._append_sometime(request)
        self._open[request.request_id] = (request, number)
        self._asked.add(request.request_id)

    def opened(self, request_id: str) -> Open:
        """What was written of a request that is open."""
        return self._open[request_id][0]

    def to_ask(self) -> list[Open]:
        """All for which ask() was called, and not yet end()."""
        return [self._open[request_id][0] for request_id in self._asked]

    # What is delivered.

    def next_batch(self, most: int) -> list[Closed]:
        """The next records; the same again until they are confirmed. Empty: that was all.

        Raises:
            OSError: a file cannot be read.
        """
        if not self._batch:
            records = (line for line in self._reader.lines() if isinstance(line, Closed))
            self._batch = list(islice(records, most))
        if not self._batch:
            unwritten = (line for line in self._unwritten if isinstance(line, Closed))
            self._batch = list(islice(unwritten, most))
        return self._batch

    async def confirm(self) -> None:
        """The batch was delivered: delete what is not needed any more."""
        batch, self._batch = self._batch, []
        if self._unwritten:
            delivered = {record.request_id for record in batch}
            self._unwritten = [_without_record(line, delivered) for line in self._unwritten]
            if any(isinstance(line, Closed) for line in self._unwritten):
                return  # all that is on the disk of them is their beginning
        try:
            if self._is_last_full():
                self._next_segment()
            while len(self._segments) > 1 and self._segments[0].is_read:
                if self._write_again(self._segments[0].number):
                    await self.sync()
                    if self._failure is not None:
                        return
                segment = self._segments.pop(0)
                self._bytes -= segment.size
                segment.path.unlink(missing_ok=True)
        except OSError as error:
            self._failed(error)

    def adopt(self) -> Orphan | None:
        """Take over a set whose process is dead, or return the one that is not settled yet.

        Raises:
            OSError: the folder cannot be read or written.
        """
        if self._orphan is None and self._lock is not None:
            self._orphan = orphan(self._folder, self._owner)
        return self._orphan

    async def settle(self, orphan: Orphan) -> None:
        """All its records are delivered: make its open requests ours, and delete it.

        Raises:
            OSError: it cannot be deleted yet.
        """
        for request in orphan.left_open():
            ending = request.ending or Ending(status=Status.PARTIAL)
            self.ask(msgspec.structs.replace(request, ending=ending))
        await self.sync()
        if self._failure is not None:
            raise OSError(self._failure)
        orphan.remove()
        self._orphan = None

    # What is done now and then.

    def repair(self) -> None:
        """Open it, or find out whether it can be written again."""
        if self._failure is None:
            return
        try:
            if self._lock is None:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._lock = Lock.make(self._folder, self._owner)
            while self._unwritten:
                self._append(self._unwritten[0])
                del self._unwritten[0]
            self._write(b"\n")
        except OSError as error:
            self._failed(error)
        else:
            self._failure = None

    async def sync(self) -> None:
        """Return when a power failure takes nothing of what was written until now."""
        try:
            if descriptors := self._take_unsynced():
                await asyncio.to_thread(_sync, self._folder, descriptors)
        except OSError as error:
            self._failed(error)

    def close(self) -> None:
        """Leave to the next edge what there still is. Idempotent."""
        if self._lock is None:
            return
        is_done = self._reader.is_at_end and not (self._batch or self._open or self._unwritten)
        try:
            _sync(self._folder, self._take_unsynced())
            if is_done:
                for segment in self._segments:
                    segment.path.unlink(missing_ok=True)
                self._lock.remove()
        except OSError as error:
            self._failed(error)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        if self._orphan is not None:
            self._orphan.release()
        self._lock.release()
        self._lock = None
        self._failure = "it was closed"

    def _append_now(self, line: Line) -> int:
        try:
            return self._append(line)
        except OSError as error:
            raise SpoolError(self._failed(error)) from error

    def _append_sometime(self, line: Line) -> int:
        if not self._unwritten:  # else it would come before them
            try:
                return self._append(line)
            except OSError as error:
                self._failed(error)
        self._unwritten.append(line)
        return self._segments[-1].number if self._segments else 0

    def _append(self, line: Line) -> int:
        """Returns the number of the segment."""
        if not self._segments or self._segments[-1].size >= self._segment_bytes:
            self._next_segment()
        self._write(b"\n" + encode(line) if self._is_torn else encode(line))
        return self._segments[-1].number

    def _write(self, data: bytes) -> None:
        if not self._segments:
            self._next_segment()
        written = os.write(self._descriptor, data)
        self._segments[-1].size += written
        self._bytes += written
        self._is_synced = False
        self._is_torn = written < len(data)
        if self._is_torn:
            raise OSError("there was no room for a whole line")

    def _next_segment(self) -> None:
        if self._lock is None:
            raise OSError(self._failure)
        number = self._segments[-1].number + 1 if self._segments else 1
        path = segment_path(self._folder, self._owner, number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        descriptor = os.open(path, flags, 0o600)
        if self._descriptor >= 0:
            self._unsynced.append(self._descriptor)
        self._descriptor = descriptor
        self._is_torn = False
        self._segments.append(Segment(number, path, size=0))

    def _is_last_full(self) -> bool:
        """Whether the last segment is to be followed by another, so that it can be deleted."""
        if not self._segments:
            return False
        last = self._segments[-1]
        # Where there is no room it may be the last segment itself that takes it.
        fills_disk = self._failure is not None and last.is_read and last.size > 0
        return fills_disk or last.size >= self._segment_bytes

    def _write_again(self, number: int) -> bool:
        """Write what is open anew if it stands in this segment or before; returns if any does."""
        old = [request for request, where in self._open.values() if where <= number]
        for request in old:
            self._open[request.request_id] = (request, self._append(request))
        return bool(old)

    def _take_unsynced(self) -> list[int]:
        """Raises OSError, and takes none, where no file can be opened any more."""
        last = [] if self._is_synced else [os.dup(self._descriptor)]
        descriptors, self._unsynced = [*self._unsynced, *last], []
        self._is_synced = True
        return descriptors

    def _failed(self, error: OSError) -> str:
        reason = error.strerror or str(error)
        if reason != self._failure:
            log.error("usage_spool_failed", folder=str(self._folder), reason=reason)
        self._failure = reason
        return f"usage cannot be recorded in {self._folder}: {reason}"


def _without_record(line: Line, delivered: set[str]) -> Line:
    """What is left to be written of a line once its record is delivered."""
    if isinstance(line, Closed) and line.request_id in delivered:
        return Void(request_id=line.request_id)
    return line


def _sync(folder: Path, descriptors: list[int]) -> None:
    """Flush files, and the names in their folder, to the disk; closes them.

    Raises:
        OSError: that failed.
    """
    try:
        for descriptor in descriptors:
            os.fsync(descriptor)
        if descriptors:
            names = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(names)
            finally:
                os.close(names)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
