"""Holds the installed TensorRT-LLM to the contract, as ``fastrun worker verify`` or this module.

The build of the worker's image runs it, so that a name that has gone fails there.
"""

import importlib
import os
import sys
from collections.abc import Callable

from gpu_worker.engine.tensorrt_llm import contract, features
from gpu_worker.engine.tensorrt_llm.library import NO_TELEMETRY


def verify(say: Callable[[str], None]) -> bool:
    """Tell every difference, and whether there are none.

    Args:
        say: told a line at a time.
    """
    os.environ.update(NO_TELEMETRY)
    try:
        version = str(importlib.import_module("tensorrt_llm").__version__)
        features.check(version)
        wanted = contract.read()
        found = contract.differences(wanted, version)
    except ImportError as error:
        say(f"TensorRT-LLM cannot be imported here, as in NVIDIA's image for it: {error}")
        return False
    except ValueError as error:
        say(f"TensorRT-LLM: {error}")
        return False
    for difference in found:
        say(str(difference))
    if not found:
        target = wanted["target"]
        say(f"TensorRT-LLM {version} has all that the worker relies on (written for {target})")
        _say_what_it_lacks(version, say)
    return not found


def _say_what_it_lacks(version: str, say: Callable[[str], None]) -> None:
    params = importlib.import_module("tensorrt_llm.sampling_params").SamplingParams
    can = features.of_version(version, dir(params))
    if not can.penalties:
        say("It ignores penalties: requests that set one are refused")
    if not can.min_p:
        say("It ignores min_p: requests that set it are refused")
    if not can.seeds:
        say("It ignores seeds: a repeated request may get another answer")


if __name__ == "__main__":
    sys.exit(0 if verify(print) else 1)
