"""A service process from start to stop, as its parent sees it."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent("""
    import asyncio, resource, sys
    from fastrun.service import lifecycle, logs

    class Service:
        async def start(self):
            if "ends" in sys.argv:
                ended.set()
            if "refuse" in sys.argv:
                raise lifecycle.StartError("the port is in use: choose another")
            if "files" in sys.argv:
                print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
            return {"grpc": 7001}

        async def drain(self):
            print("draining", flush=True)
            if "hang" in sys.argv:
                await asyncio.Event().wait()

        async def stop(self):
            print("stopped", flush=True)

    logs.configure("test")
    ended = asyncio.Event()
    if "files" in sys.argv:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
    lifecycle.run(Service, grace_s=60 if "long" in sys.argv else 0.2, ended=ended)
""")


@pytest.fixture
def start():
    processes, descriptors = [], []

    def run(*arguments):
        ready_read, ready_write = os.pipe()
        parent_read, parent_write = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            env={
                **os.environ,
                "FASTRUN_READY_FD": str(ready_write),
                "FASTRUN_PARENT_FD": str(parent_read),
            },
            pass_fds=(ready_write, parent_read),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(ready_write)
        os.close(parent_read)
        processes.append(process)
        descriptors.append(parent_write)
        with os.fdopen(ready_read) as ready:
            return process, json.loads(ready.readline()), parent_write

    yield run
    for process in processes:
        process.kill()
        process.communicate()
    for descriptor in descriptors:
        try:
            os.close(descriptor)
        except OSError:
            continue  # a test closed it


def test_ports_are_told_and_sigterm_stops(start):
    """The parent learns the ports, and SIGTERM drains, stops and exits with 0."""
    process, message, _ = start()
    assert message == {"ports": {"grpc": 7001}}
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (0, "draining\nstopped\n")


def test_a_drain_that_hangs_is_cut_short(start):
    """After the grace the service stops although requests still run."""
    process, _, _ = start("hang")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out) == (0, "draining\nstopped\n")
    assert "drain_cut_short" in err


def test_a_service_that_ends_by_itself_stops_as_after_a_signal(start):
    """It is drained and stopped, exits with 0, and a first signal meanwhile is not a second."""
    process, _, _ = start("ends")
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (0, "draining\nstopped\n")
    process, _, _ = start("ends", "hang", "long")
    assert process.stdout.readline() == "draining\n"
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)


def test_a_second_signal_exits_at_once(start):
    """Who asks twice does not wait for the grace."""
    process, _, _ = start("hang", "long")
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "draining\n"
    process.send_signal(signal.SIGINT)
    process.wait(timeout=10)
    assert process.returncode == 130


def test_a_service_that_cannot_start_says_why(start):
    """The parent gets the sentence, and the exit status is 1."""
    process, message, _ = start("refuse")
    assert message == {"error": "the port is in use: choose another"}
    process.communicate(timeout=10)
    assert process.returncode == 1


def test_a_dead_parent_takes_the_service_with_it(start):
    """When the parent's end of the pipe closes, the process is gone."""
    process, _, parent_write = start()
    os.close(parent_write)
    process.communicate(timeout=10)
    assert process.returncode == 1


def test_open_files(start):
    """A service may open as many files as the system lets it."""
    process, _, _ = start("files")
    assert process.stdout.readline() == "4096\n"
