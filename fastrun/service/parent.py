"""What a child of `fastrun up` owes its parent: to end with it, and to say that it serves.

It ends also when the parent was killed by kill -9: by the kernel's death signal where there is one
(Linux), and by a pipe that closes with the parent. It tells its parent in one line of JSON that it
serves, on which ports, or why it cannot.
"""

import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import MutableMapping
from typing import Any

PARENT_PIPE = "FASTRUN_PARENT_FD"
READY_PIPE = "FASTRUN_READY_FD"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def follow(environ: MutableMapping[str, str]) -> None:
    """Die with the parent that started this process with a pipe in FASTRUN_PARENT_FD."""
    descriptor = environ.pop(PARENT_PIPE, None)
    if descriptor is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        # The parent never writes: a read returns only when its end is closed.
        os.read(int(descriptor), 1)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def tell(environ: MutableMapping[str, str], message: dict[str, Any]) -> None:
    """Send the one message that a parent with a pipe in FASTRUN_READY_FD waits for."""
    descriptor = environ.pop(READY_PIPE, None)
    if descriptor is None:
        return
    with os.fdopen(int(descriptor), "w") as pipe:
        pipe.write(json.dumps(message) + "\n")
