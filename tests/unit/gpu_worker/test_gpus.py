"""What is known of the machine's GPUs."""

import sys

from standin_engine import installed

from gpu_worker import gpus
from gpu_worker.gpus import Gpu


def test_names_and_memory_come_from_the_driver():
    """Each GPU has the name that its driver gives it."""
    with installed():
        assert gpus.find() == [Gpu("NVIDIA Stand-in", 80 << 30)]


def test_a_missing_driver_is_no_error():
    """A machine without a driver has no GPUs."""
    with installed(FASTRUN_STANDIN_NO_DRIVER="1"):
        assert gpus.find() == []


def test_a_missing_library_is_no_error(monkeypatch):
    """A worker without the library knows of none."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus.find() == []
