"""A folder for one run, which takes it away at its end; the next one does if the run was killed."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from fastrun.local.errors import LocalError

_PREFIX = "fastrun-"
_OWNER = ".owner"
"""Holds its process's id, and a lock that ends with the process: no id, no owner yet."""


class TemporaryFolder:
    """Made at once; to be used as a context, or closed.

    Raises:
        LocalError: there is no room for it.
    """

    def __init__(self) -> None:
        try:
            sweep(Path(tempfile.gettempdir()))
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
            self._owner: int | None = os.open(self.path / _OWNER, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._owner, fcntl.LOCK_EX)
            # Last: from now on it is swept if nobody has the lock.
            os.write(self._owner, str(os.getpid()).encode())
        except OSError as error:
            raise LocalError(
                f"cannot make a temporary folder: {error.strerror}; set TMPDIR to one with room"
            ) from error

    def close(self) -> None:
        """Remove it. Idempotent."""
        if self._owner is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._owner)
            self._owner = None

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove it."""
        self.close()


def sweep(among: Path) -> None:
    """Remove the folders of this user whose processes were killed.

    Args:
        among: where such folders are made, such as /tmp.
    """
    for folder in among.glob(f"{_PREFIX}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            owner = os.open(folder / _OWNER, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue  # it is not ours to look into, or is being made or removed
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(owner).st_size:
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue  # its process lives
        finally:
            os.close(owner)
