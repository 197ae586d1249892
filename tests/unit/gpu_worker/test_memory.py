"""When a worker has grown too large."""

import os
import subprocess
import sys

import pytest

from gpu_worker import memory
from gpu_worker.memory import MemoryBound, own_bound

GIB = 1 << 30


def process(proc, pid, pages, children=""):
    task = proc / str(pid) / "task" / str(pid)
    task.mkdir(parents=True)
    (task / "children").write_text(children)
    (proc / str(pid) / "statm").write_text(f"999 {pages} 1 1 0 1 0")


def test_children_count(tmp_path):
    """What the engine's own processes hold is held by the worker."""
    pid, page = os.getpid(), os.sysconf("SC_PAGESIZE")
    process(tmp_path, pid, 10, "77 78")
    process(tmp_path, 77, 5, "79")
    process(tmp_path, 79, 2)  # 78 has just ended
    assert memory.resident(tmp_path) == 17 * page
    assert MemoryBound(17 * page, proc=tmp_path).exceeded_by() == 0
    assert MemoryBound(16 * page, proc=tmp_path).exceeded_by() == page
    assert MemoryBound(None, proc=tmp_path).exceeded_by() == 0


@pytest.mark.skipif(not memory.PROC.exists(), reason="there is no /proc")
def test_a_real_child_counts():
    """A child that takes memory is seen."""
    before = memory.resident()
    code = "import sys; held = b'x' * (50 << 20); print(len(held), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        assert memory.resident() - before > 50 << 20
        child.stdin.close()


def test_the_own_bound_leaves_room_to_grow():
    """A worker may grow by half of what was left when it had started."""
    assert own_bound(20 * GIB, 100 * GIB) == 70 * GIB
    assert own_bound(20 * GIB, 0) is None


def test_a_container_bounds_what_is_available(tmp_path):
    """What is left in the container counts where that is less than in the machine."""
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    assert memory.available(tmp_path, tmp_path) == 2 << 20
    (tmp_path / "memory.current").write_text("1048576\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available(tmp_path, tmp_path) == 2 << 20
    (tmp_path / "memory.max").write_text("1572864\n")
    assert memory.available(tmp_path, tmp_path) == 1 << 19
    assert memory.available(tmp_path / "none", tmp_path / "none") == 0
