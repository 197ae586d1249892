"""Starts a worker: ``python -m gpu_worker``."""

import asyncio
import logging
import os
import sys
from functools import partial

from fastrun.service import lifecycle, logs
from fastrun.service.config import explicit, load_or_exit
from gpu_worker.config import Config
from gpu_worker.engines import load
from gpu_worker.model_file import ModelFileError
from gpu_worker.model_settings import with_model
from gpu_worker.model_store import store_of
from gpu_worker.service import WorkerProcess


def main() -> None:
    """Run a worker until a signal, until an operator drains it, or until its engine dies."""
    config = _settings()
    logs.configure("gpu_worker", level=config.log_level)
    drained = asyncio.Event()
    lifecycle.run(
        lambda: WorkerProcess(config, partial(load, config), leave=_leave, drained=drained),
        grace_s=config.grace_s,
        ended=drained,
    )


def _settings() -> Config:
    """Read the settings and the model's file, or say on stderr what is wrong and exit."""
    config = load_or_exit(Config, "worker", os.environ)
    try:
        return with_model(
            config,
            store_of(config.models),
            is_set=lambda name: explicit("worker", name, os.environ) is not None,
        )
    except ModelFileError as error:
        print(f"worker: {error}", file=sys.stderr)  # noqa: T201 - logs need a config first
        raise SystemExit(2) from None


def _leave(status: int) -> None:
    # Not sys.exit: the threads of a dead engine may never end.
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    main()
