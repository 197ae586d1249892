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


def find(visible: str | None = None) -> list[Gpu]:
    """Return the GPUs that can be seen; none where the library, a driver or a GPU is missing.

    Args:
        visible: those alone that a program may use, as CUDA_VISIBLE_DEVICES says; None: all.
    """
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return []
    try:
        nvml.nvmlInit()
        try:
            return [_gpu(nvml, handle) for handle in _handles(nvml, visible)]
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        log.warning("gpus_unknown", kind=type(error).__name__)
        return []


def _handles(nvml: Any, visible: str | None) -> list[Any]:
    if visible is None:
        return list(map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount())))
    return [
        nvml.nvmlDeviceGetHandleByIndex(int(device))
        if device.isdecimal()
        else nvml.nvmlDeviceGetHandleByUUID(device)
        for device in map(str.strip, visible.split(","))
    ]


def _gpu(nvml: Any, handle: Any) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(str(nvml.nvmlDeviceGetName(handle)), int(memory.total))
