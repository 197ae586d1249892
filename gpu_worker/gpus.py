"""Which NVIDIA GPUs this machine has, by NVIDIA's own management library."""

from importlib import import_module
from typing import Any

import msgspec
import structlog

log = structlog.get_logger(__name__)


class Gpu(msgspec.Struct, frozen=True):
    """One of them."""

    name: str
    memory_bytes: int


def find() -> list[Gpu]:
    """Return the GPUs that can be seen; none where the library, a driver or a GPU is missing."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return []
    try:
        nvml.nvmlInit()
        try:
            return [_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        log.warning("gpus_unknown", kind=type(error).__name__)
        return []


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(str(nvml.nvmlDeviceGetName(handle)), int(memory.total))
