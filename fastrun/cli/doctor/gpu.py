"""Which GPUs this machine has, and whether what is installed can use them."""

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fastrun.cli.doctor.finding import Finding, ok, skipped, wrong
from gpu_worker import gpus
from gpu_worker.engine.tensorrt_llm.features import OLDEST, ordered

DRIVER = Path("/proc/driver/nvidia/version")


def check(*, needed: bool) -> Iterator[Finding]:
    """Look at the GPUs.

    Args:
        needed: the worker here is to compute on them.
    """
    problem = _problem()
    found = [] if problem else gpus.find()
    if found:
        for gpu in found:
            yield ok("gpu", f"{gpu.name} with {gpu.memory_bytes >> 30} GiB is seen")
    elif problem and (needed or DRIVER.exists()):
        yield wrong("gpu", problem)
    elif needed:
        yield wrong("gpu", "the driver sees no GPU: give this machine or container one")
    else:
        yield skipped("gpu", "there is no NVIDIA GPU here: models run on the CPU")
    if needed:
        yield _library()


def _problem() -> str | None:
    """Say why NVIDIA's management library cannot be asked; None: it can."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return "GPUs cannot be seen without NVIDIA's library: run pip install nvidia-ml-py"
    try:
        nvml.nvmlInit()
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        return (
            f"NVIDIA's driver cannot be used ({error}): install it, and in a container run "
            "with --gpus all"
        )
    return None


def _library() -> Finding:
    """Look at TensorRT-LLM without importing it, which takes many seconds."""
    try:
        found = version("tensorrt_llm")
        is_too_old = ordered(found) < ordered(OLDEST)
    except PackageNotFoundError:
        return wrong("gpu", "TensorRT-LLM is missing: start the worker in NVIDIA's image for it")
    except ValueError as error:
        return wrong("gpu", f"TensorRT-LLM: {error}: install {OLDEST} or newer")
    if is_too_old:
        return wrong("gpu", f"TensorRT-LLM {found} is too old: install {OLDEST} or newer")
    return ok("gpu", f"TensorRT-LLM {found} is installed; fastrun worker verify looks closer")
