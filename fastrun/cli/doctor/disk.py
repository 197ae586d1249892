"""Whether there is room, and whether it can be written to."""

import os
import shutil
import tempfile
from pathlib import Path

from fastrun.cli.doctor.finding import Finding, ok, wrong

LEAST_BYTES = 100 << 20
_TRIED_BYTES = 1 << 20


def check(folder: Path, what: str, elsewhere: str) -> Finding:
    """Look at where a folder is, or is going to be made; leaves nothing behind.

    Args:
        folder: where.
        what: is kept there.
        elsewhere: how another folder is chosen.
    """
    place = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        free = shutil.disk_usage(place).free
        # A quota, or a disk without inodes, does not show in what is free.
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(os.urandom(min(_TRIED_BYTES, free)))
            file.flush()
    except OSError as error:
        return wrong("disk", f"cannot write to {place} ({error.strerror}), for {what}: {elsewhere}")
    if free < LEAST_BYTES:
        return wrong(
            "disk",
            f"the disk of {place} has {free >> 20} MB left and {what} needs "
            f"{LEAST_BYTES >> 20} MB: make room, or {elsewhere}",
        )
    return ok("disk", f"{free >> 20:,} MB are free for {what} in {folder}")
