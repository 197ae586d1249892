"""A stack of its own, as `fastrun up` starts it, whose edge has a core of its own."""

import sys
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastrun.bench.edge import cores
from fastrun.bench.edge.cores import Cores
from fastrun.bench.edge.load import Target
from fastrun.local import environment, preflight
from fastrun.local.folder import DataFolder
from fastrun.local.output import Output
from fastrun.local.stack import Options, Stack

SPARE_SLOTS = 64
"""More than connections: a slot is free only when its worker says so."""


@asynccontextmanager
async def deployed(
    *, streams: int, tokens_per_s: float, divided: Cores, environ: Mapping[str, str]
) -> AsyncIterator[Target]:
    """Run a stack whose engine follows a script, and leave nothing behind.

    Args:
        streams: at once, at most.
        tokens_per_s: of each; 0 is as fast as it goes.
        divided: which cores are whose.
        environ: our own; settings of the services in it stand.

    Raises:
        LocalError: it cannot run here.
    """
    preflight.check_machine()
    preflight.check_packages()
    environment.check_own(environ)
    settings = {
        "engine": "scripted",
        "slots": streams + SPARE_SLOTS,
        "scripted_tokens_per_s": tokens_per_s,
    }
    folder = DataFolder.temporary()
    output = Output(sys.stderr)
    stack = Stack(Options(port=0, worker_settings=settings), folder, output, environ)
    try:
        folder.acquire()
        state = await stack.start()
        processes = stack.processes()
        processes["measured"] = processes.pop("edge")
        cores.move(processes["measured"], divided.measured)
        port = urllib.parse.urlsplit(state.base_url).port
        assert port is not None
        yield Target(
            name="fastrun",
            port=port,
            key=folder.api_key.read_text(),
            model=state.model,
            processes={name: [pid] for name, pid in processes.items()},
        )
    finally:
        output.quiet = True
        await stack.stop()
        folder.release()
