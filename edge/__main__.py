"""Starts an edge: ``python -m edge``."""

import gc
import os

from edge.app import Edge
from edge.config import Config
from fastrun.service import config as settings
from fastrun.service import lifecycle, logs

# Requests leave few cycles behind, and most of what is young when it is looked at is in use.
GC_THRESHOLDS = (10_000, 10, 10)


def main() -> None:
    """Read the settings and serve until a signal."""
    config = settings.load_or_exit(Config, "edge", os.environ)
    logs.configure("edge", level=config.log_level)
    gc.set_threshold(*GC_THRESHOLDS)
    lifecycle.run(lambda: Edge(config), grace_s=config.grace_s)


if __name__ == "__main__":
    main()
