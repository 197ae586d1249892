"""A file that only its owner reads, there whole or not at all: keys, and what names them."""

import os
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Write it in place of what was there; its folder is made for its owner alone if there is none.

    Whoever reads meanwhile finds the former one, also after a loss of power.

    Raises:
        OSError: it cannot be written, and what was there is as it was.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}")
    partial.unlink(missing_ok=True)  # whatever it is, and whoever may read it
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
