"""A stand-in for nvidia-ml-py: some GPUs, or an error."""

import os
from types import SimpleNamespace


class NVMLError(Exception):
    """Anything that fails."""


_users = []


def nvmlInit():
    if "FASTRUN_STANDIN_NO_DRIVER" in os.environ:
        raise NVMLError("NVML Shared Library Not Found")

    _users.append("one of several, perhaps")


def nvmlShutdown():
    _users.pop()


def nvmlSystemGetDriverVersion():
    assert _users, "it was not initialized"
    return "580.65.06"


def nvmlDeviceGetCount():
    return int(os.environ.get("FASTRUN_STANDIN_GPUS", "1"))


def nvmlDeviceGetHandleByIndex(index):
    assert _users, "it was not initialized"
    if not 0 <= index < nvmlDeviceGetCount():
        raise NVMLError("Invalid Argument")
    return SimpleNamespace(index=index)


def nvmlDeviceGetHandleByUUID(uuid):
    prefix, _, index = uuid.rpartition("-")
    if prefix != "GPU-00000000-0000-0000-0000" or not index.isdecimal():
        raise NVMLError("Not Found")
    return nvmlDeviceGetHandleByIndex(int(index))


def nvmlDeviceGetName(handle):
    return f"NVIDIA Stand-in {handle.index}"


def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(total=80 << 30, free=79 << 30, used=1 << 30)
