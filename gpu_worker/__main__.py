"""Starts a worker: ``python -m gpu_worker``."""

import asyncio
import logging
import os
from functools import partial

from fastrun.service import lifecycle, logs
from fastrun.service.config import load_or_exit
from gpu_worker.config import Config
from gpu_worker.engines import load
from gpu_worker.service import WorkerProcess


def main() -> None:
    """Run a worker until a signal, until an operator drains it, or until its engine dies."""
    config = load_or_exit(Config, "worker", os.environ)
    logs.configure("gpu_worker", level=config.log_level)
    drained = asyncio.Event()
    lifecycle.run(
        lambda: WorkerProcess(config, partial(load, config), leave=_leave, drained=drained),
        grace_s=config.grace_s,
        ended=drained,
    )


def _leave(status: int) -> None:
    # Not sys.exit: the threads of a dead engine may never end.
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    main()
