"""A stand-in for nvidia-ml-py: one GPU, or an error."""

import os
from types import SimpleNamespace


class NVMLError(Exception):
    """Anything that fails."""


def nvmlInit():
    if "FASTRUN_STANDIN_NO_DRIVER" in os.environ:
        raise NVMLError("NVML Shared Library Not Found")


def nvmlShutdown():
    pass


def nvmlDeviceGetCount():
    return 1


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetName(handle):
    return "NVIDIA Stand-in"


def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(total=80 << 30, free=79 << 30, used=1 << 30)
