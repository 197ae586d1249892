"""A file that only its owner reads, there whole or not at all: keys, and what names them."""

import os
import tempfile
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Write it in place of what was there; its folder is made for its owner alone if there is none.

    Whoever reads meanwhile finds the former one, also after a loss of power. Of several who write
    at once, services that share a folder, the last one wins.

    Raises:
        OSError: it cannot be written, and what was there is as it was.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # New, its owner's alone, and no other writer's.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
