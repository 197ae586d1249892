"""Which GPUs this machine has, and whether what is installed can use them."""

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fastrun.cli.doctor.finding import Finding, ok, skipped, wrong
from gpu_worker import gpus
from gpu_worker.engine.tensorrt_llm.features import OLDEST, ordered

DRIVER = Path("/proc/driver/nvidia/version")


class _DriverError(Exception):
    """GPUs cannot be asked for; the message says why, and what to do."""


def check(*, needed: int, visible: str | None) -> Iterator[Finding]:
    """Look at the GPUs.

    Args:
        needed: on how many the worker here is to compute.
        visible: those alone that it may use, as CUDA_VISIBLE_DEVICES says; None: all.
    """
    try:
        driver = _driver()
    except _DriverError as error:
        if needed or DRIVER.exists():
            yield wrong("gpu", str(error))
        else:
            yield skipped("gpu", "there is no NVIDIA GPU here: models run on the CPU")
    else:
        yield from _gpus(gpus.find(visible), driver, needed)
    if needed:
        yield _library()


def _gpus(found: list[gpus.Gpu], driver: str, needed: int) -> Iterator[Finding]:
    for gpu in found:
        size = f"{gpu.memory_bytes >> 30} GiB"
        yield ok("gpu", f"{gpu.name} with {size} is seen, by driver {driver}")
    if len(found) < needed:
        yield wrong(
            "gpu",
            f"the worker is to compute on {needed} GPUs and {len(found)} can be used: give it "
            "more (in a container --gpus, else CUDA_VISIBLE_DEVICES), or lower "
            "FASTRUN_WORKER_TENSOR_PARALLEL and _PIPELINE_PARALLEL",
        )
    elif not found:
        yield skipped("gpu", f"driver {driver} sees no GPU: models run on the CPU")


def _driver() -> str:
    """Ask NVIDIA's management library for the version of its driver."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        raise _DriverError(
            "GPUs cannot be seen without NVIDIA's library: run pip install nvidia-ml-py"
        ) from None
    try:
        nvml.nvmlInit()
        try:
            return str(nvml.nvmlSystemGetDriverVersion())
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise _DriverError(
            f"NVIDIA's driver cannot be used ({error}): install it, and run a container with "
            "--gpus all"
        ) from error


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
