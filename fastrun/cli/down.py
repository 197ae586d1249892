"""`fastrun down`: stops a stack that runs elsewhere."""

import os
import signal
import time

from fastrun.cli.data import Data, data_folder
from fastrun.cli.errors import CommandError
from fastrun.cli.group import group
from fastrun.cli.output import Json, print_json
from fastrun.local.folder import DataFolder

app = group()

STOP_S = 90.0  # more than all parts together may take
_POLL_S = 0.05


@app.command(epilog="Example: fastrun down")
def down(data: Data = None, as_json: Json = False) -> None:
    """Stop what `fastrun up` has started, and wait until nothing of it runs."""
    folder = data_folder(data)
    pid = folder.holder()
    if pid is None:
        _say(f"nothing runs in {folder.path}", None, as_json=as_json)
        return
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError as error:
        raise CommandError(f"process {pid} is another user's: stop it as that user") from error
    except ProcessLookupError:
        pass  # it has just ended
    _wait(folder, pid)
    _say("stopped", pid, as_json=as_json)


def _say(text: str, stopped: int | None, *, as_json: bool) -> None:
    if as_json:
        print_json({"stopped_pid": stopped})
    else:
        print(text)


def _wait(folder: DataFolder, pid: int) -> None:
    deadline = time.monotonic() + STOP_S
    while folder.holder() == pid:
        if time.monotonic() > deadline:
            raise CommandError(f"process {pid} still runs after {STOP_S:.0f} s: try kill -9 {pid}")
        time.sleep(_POLL_S)
