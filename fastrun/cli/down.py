"""`fastrun down`: stops a stack that runs elsewhere."""

import os
import signal
import time

from fastrun.cli.data import Data, data_folder
from fastrun.cli.errors import CommandError
from fastrun.cli.group import group
from fastrun.local.folder import DataFolder

app = group()

STOP_S = 90.0  # more than all parts together may take
_POLL_S = 0.05


@app.command()
def down(data: Data = None) -> None:
    """Stop what `fastrun up` has started, and wait until nothing of it runs."""
    folder = data_folder(data)
    pid = folder.holder()
    if pid is None:
        print(f"nothing runs in {folder.path}")
        return
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError as error:
        raise CommandError(f"process {pid} is another user's: stop it as that user") from error
    except ProcessLookupError:
        pass  # it has just ended
    _wait(folder, pid)
    print("stopped")


def _wait(folder: DataFolder, pid: int) -> None:
    deadline = time.monotonic() + STOP_S
    while folder.holder() == pid:
        if time.monotonic() > deadline:
            raise CommandError(f"process {pid} still runs after {STOP_S:.0f} s: try kill -9 {pid}")
        time.sleep(_POLL_S)
