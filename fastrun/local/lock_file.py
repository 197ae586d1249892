"""A file that a process holds a lock on for as long as it lives, maybe with its id in it."""

import fcntl
import os
from pathlib import Path


def holder(path: Path) -> int | None:
    """The process id that the holder of a lock has written there, 0 if none; None: nobody has it.

    It is tried by a shared lock, so that those who ask at once are none to each other.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.pread(descriptor, 20, 0) or 0)
    finally:
        os.close(descriptor)
    return None
