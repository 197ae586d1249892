"""What a process has had of its processors."""

import os
import subprocess
import sys
import threading
import time

from fastrun.bench.scheduler import processor_time


def test_work_of_any_thread_counts():
    """What a thread beside the first one computes is of the process, and not of the first one."""
    began = processor_time.of_process(os.getpid())
    done = threading.Event()

    def work():
        while time.thread_time() < 0.2:
            pass
        worked.set()
        done.wait()

    worked = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    worked.wait()
    ran = processor_time.of_process(os.getpid()) - began
    done.set()
    thread.join()
    assert ran.ran_s >= 0.19
    assert ran.ran_s - ran.main_ran_s >= 0.19


def test_memory():
    """Some memory of this process is resident."""
    assert processor_time.resident_mib(os.getpid()) > 1


def test_a_child_is_alone_on_its_core():
    """What is started within has one core, which this process leaves to it where it has others."""
    program = """
import os, subprocess, sys
from fastrun.bench.scheduler.processor_time import apart
before = os.sched_getaffinity(0)
with apart():
    child = subprocess.run(
        [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"],
        capture_output=True, text=True, check=True,
    )
theirs = {int(each) for each in child.stdout.split()}
ours = os.sched_getaffinity(0)
assert len(theirs) == 1, theirs
assert ours == (before - theirs or before), (before, ours, theirs)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
