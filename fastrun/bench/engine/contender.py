"""One engine in its process: ``python -m fastrun.bench.engine.contender NAME THREADS MODEL``.

It says ``ready`` once its model is loaded, and answers each line with a workload by one with a run.
"""

import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Protocol

import msgspec

from fastrun.bench.engine.workload import Run, Workload

# Other engines' libraries are imported in their own module alone: they may be missing.
MODULES = {
    "fastrun": "fastrun_engine",
    "fastrun fast": "fastrun_engine",
    "openvino-genai": "openvino_genai_engine",
    "openvino-genai f32": "openvino_genai_engine",
    "xllamacpp": "xllamacpp_engine",
}
READY = "ready"


class Contender(Protocol):
    """An engine with its model."""

    def run(self, workload: Workload, on_first_token: Callable[[], None]) -> int:
        """Generate until all streams have their tokens; return how many tokens came.

        Args:
            workload: how many streams, and how long.
            on_first_token: to be called once for each stream, from any thread.
        """


def measure(contender: Contender, workload: Workload) -> Run:
    """Run a workload."""
    first: list[float] = []
    cpu, began = time.process_time(), time.perf_counter()
    tokens = contender.run(workload, lambda: first.append(time.perf_counter() - began))
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return Run(tokens, wall_s, cpu_s, first)


def main(name: str, threads: int, model: str) -> None:
    """Serve until stdin ends."""
    module = import_module(f"fastrun.bench.engine.{MODULES[name]}")
    contender: Contender = module.load(name, model=model, threads=threads)
    _say(READY)
    for line in sys.stdin:
        run = measure(contender, msgspec.json.decode(line, type=Workload))
        _say(msgspec.json.encode(run).decode())


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
