"""What is known of the machine's GPUs."""

import sys

import pytest
from standin_engine import installed

from gpu_worker import gpus
from gpu_worker.gpus import Gpu

UUID = "GPU-00000000-0000-0000-0000-{:012}"


def found(visible=None, **environ):
    with installed(FASTRUN_STANDIN_GPUS="4", **environ):
        return [gpu.name.removeprefix("NVIDIA Stand-in ") for gpu in gpus.find(visible)]


def test_names_and_memory_come_from_the_driver():
    """Each GPU has the name that its driver gives it."""
    with installed():
        assert gpus.find() == [Gpu("NVIDIA Stand-in 0", 80 << 30)]
    assert found() == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("visible", "told"),
    [("2", ["2"]), (f"3, {UUID.format(1)}", ["3", "1"]), ("-1", []), ("", []), ("9", [])],
)
def test_only_those_are_told_that_may_be_used(visible, told):
    """Of a machine that several workers share; what its driver does not know is no error."""
    assert found(visible) == told


def test_a_missing_driver_is_no_error():
    """A machine without a driver has no GPUs."""
    assert found(FASTRUN_STANDIN_NO_DRIVER="1") == []


def test_a_missing_library_is_no_error(monkeypatch):
    """A worker without the library knows of none."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert found() == []
