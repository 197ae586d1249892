import sys
from pathlib import Path

import pytest
from standin_engine import installed

from fastrun.cli.doctor import gpu
from fastrun.cli.doctor.finding import State


@pytest.fixture
def gpus():
    """Two GPUs, as the stand-in for NVIDIA's management library has them."""
    with installed(FASTRUN_STANDIN_GPUS="2"):
        yield


def look(needed=0, visible=None):
    return [(found.state, found.says) for found in gpu.check(needed=needed, visible=visible)]


def test_seen(gpus):
    """Each GPU is told, with its memory and the driver's version."""
    assert look() == [
        (State.OK, "NVIDIA Stand-in 0 with 80 GiB is seen, by driver 580.65.06"),
        (State.OK, "NVIDIA Stand-in 1 with 80 GiB is seen, by driver 580.65.06"),
    ]
    assert [says[:17] for _, says in look(visible="1")] == ["NVIDIA Stand-in 1"]


def test_too_few(gpus):
    """A worker that is to compute on more GPUs than it may use is told how many are missing."""
    wrong = [says for state, says in look(needed=2, visible="0") if state is State.WRONG]
    assert wrong[0].startswith("the worker is to compute on 2 GPUs and 1 can be used")


def test_no_driver(monkeypatch):
    """A driver that cannot be used is wrong where one is needed, and else no matter."""
    monkeypatch.setattr(gpu, "DRIVER", Path("/nowhere"))
    with installed(FASTRUN_STANDIN_NO_DRIVER="1"):
        assert look() == [(State.SKIPPED, "there is no NVIDIA GPU here: models run on the CPU")]
        (state, says), *_ = look(needed=1)
    assert state is State.WRONG
    assert says.startswith("NVIDIA's driver cannot be used (NVML Shared Library Not Found)")


def test_no_library(monkeypatch):
    """Without NVIDIA's library, or TensorRT-LLM, a worker that needs them is told to get them."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (_, library), (_, engine) = look(needed=1)
    assert "pip install nvidia-ml-py" in library
    assert engine == "TensorRT-LLM is missing: start the worker in NVIDIA's image for it"
