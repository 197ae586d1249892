"""Where the words of a child process go."""

import os
from contextlib import suppress
from pathlib import Path
from typing import IO

LOG_BYTES = 10 << 20  # then the file begins anew; one former file is kept, also of the former run


class LogFile:
    """What a child writes, in a file that cannot grow without bound.

    A disk that is full costs lines, not the stack.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self._begin_anew()

    def write(self, data: bytes) -> None:
        """Append, if that can be."""
        with suppress(OSError):
            if self._file is None:
                self._file = open(self.path, "ab", opener=_private)  # noqa: SIM115 - see close()
            self._file.write(data)
            self._file.flush()
            if self._file.tell() > LOG_BYTES:
                self.close()
                self._begin_anew()

    def close(self) -> None:
        """Free the file; writing opens it again."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _begin_anew(self) -> None:
        with suppress(OSError):  # there is none yet, or the disk is full
            self.path.replace(self.path.with_suffix(".log.1"))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
