import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fastrun.local import guard

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has death signals")

# Writes its id to a file, then waits as Postgres would: SIGINT ends it.
SLEEPER = ["/bin/sh", "-c", 'echo $$ > "$0.new"; mv "$0.new" "$0"; exec sleep 1000']

# A guard with little patience, for commands that try it.
HASTY = (
    "import sys; from fastrun.local import guard;"
    "guard.STOP_STEPS_S = tuple((number, 0.2) for number, _ in guard.STOP_STEPS_S);"
    "guard.ORPHANS_S = 0.2;"
    "sys.exit(guard.main(*sys.argv[1:]))"
)


@pytest.fixture
def start():
    """Start guards, and end all of them."""
    guards = []

    def run(command, **kwargs):
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **kwargs
        )
        guards.append(process)
        return process

    yield run
    for process in guards:
        process.stdin.close()
        process.wait(60)
        process.stderr.close()


def pid_in(path: Path) -> int:
    return int(path.read_text())


def test_stops_its_command(start, until, alive, tmp_path):
    """End of file on its stdin makes the guard stop the command and report how that ended."""
    process = start(guard.command_line([*SLEEPER, str(tmp_path / "pid")]))
    until((tmp_path / "pid").exists)
    process.stdin.close()
    assert process.wait(20) == 128 + signal.SIGINT
    assert not alive(pid_in(tmp_path / "pid"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_stops_by_signal(start, until, alive, tmp_path, number):
    """A guard that is told to end stops its command first."""
    process = start(guard.command_line([*SLEEPER, str(tmp_path / "pid")]))
    until((tmp_path / "pid").exists)
    process.send_signal(number)
    assert process.wait(20) == 128 + signal.SIGINT
    assert not alive(pid_in(tmp_path / "pid"))


def test_ctrl_c_is_not_for_it(start, until, tmp_path):
    """SIGINT does not end a guard: the starter decides on the order."""
    process = start(guard.command_line([*SLEEPER, str(tmp_path / "pid")]))
    until((tmp_path / "pid").exists)
    process.send_signal(signal.SIGINT)
    process.stdin.close()
    assert process.wait(20) == 128 + signal.SIGINT  # its own death would be -SIGINT


def test_exit_status(start):
    """The guard ends as its command does."""
    assert start(guard.command_line(["/bin/sh", "-c", "exit 7"])).wait(20) == 7


def test_no_such_command(start, tmp_path):
    """A command that cannot be started is named on stderr, and the status is 127."""
    process = start(guard.command_line([str(tmp_path / "nothing")]))
    assert process.wait(20) == 127
    assert f"cannot start {tmp_path}/nothing: No such file".encode() in process.stderr.read()


def test_removes_when_stopped(start, until, tmp_path):
    """The folder goes when the command is stopped."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    process = start(guard.command_line([*SLEEPER, str(folder / "pid")], remove=str(folder)))
    until((folder / "pid").exists)
    process.stdin.close()
    process.wait(20)
    assert not folder.exists()


def test_keeps_when_ended(start, tmp_path):
    """The folder stays when the command ends by itself: it may be started again."""
    process = start(guard.command_line(["/bin/sh", "-c", "exit 0"], remove=str(tmp_path)))
    assert process.wait(20) == 0
    assert tmp_path.exists()


def test_starter_killed(until, alive, tmp_path):
    """A kill -9 of the starter ends guard and command, and removes the folder."""
    folder = tmp_path / "ephemeral"
    folder.mkdir()
    code = (
        "import subprocess, sys; from fastrun.local import guard;"
        f"command = guard.command_line({[*SLEEPER, str(folder / 'pid')]!r}, remove={str(folder)!r});"
        "guarded = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True);"
        "print(guarded.pid, flush=True); guarded.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as starter:
        guard_pid = int(starter.stdout.readline())
        until((folder / "pid").exists)
        command_pid = pid_in(folder / "pid")
        starter.kill()
    until(lambda: not alive(guard_pid) and not alive(command_pid))
    assert not folder.exists()


@linux
def test_starter_killed_with_leaked_pipe(start, until, alive, tmp_path):
    """The starter's death is noticed even if somebody else holds the pipe open."""
    code = (
        "import subprocess, sys; from fastrun.local import guard;"
        f"command = guard.command_line({[*SLEEPER, str(tmp_path / 'pid')]!r});"
        "guarded = subprocess.Popen(command, stdin=0, start_new_session=True);"
        "print(guarded.pid, flush=True); guarded.wait()"
    )
    # The test itself holds the write end.
    starter = start([sys.executable, "-c", code], stdout=subprocess.PIPE)
    guard_pid = int(starter.stdout.readline())
    starter.stdout.close()
    until((tmp_path / "pid").exists)
    starter.kill()
    until(lambda: not alive(guard_pid) and not alive(pid_in(tmp_path / "pid")))


@linux
def test_starting_thread_may_end(start, until, alive, tmp_path):
    """The end of the thread that started the guard is not the starter's death."""
    started = []
    command = guard.command_line([*SLEEPER, str(tmp_path / "pid")])

    def work():
        started.append(start(command))
        until((tmp_path / "pid").exists)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert alive(pid_in(tmp_path / "pid"))
    assert started[0].poll() is None


@linux
def test_guard_killed(start, until, alive, tmp_path):
    """A kill -9 of the guard ends the command."""
    process = start(guard.command_line([*SLEEPER, str(tmp_path / "pid")]))
    until((tmp_path / "pid").exists)
    process.kill()
    until(lambda: not alive(pid_in(tmp_path / "pid")))


def test_deaf_command(start, until, alive, tmp_path):
    """A command that ignores all requests is killed."""
    deaf = [
        "/bin/sh",
        "-c",
        'trap "" INT QUIT; echo $$ > "$0.new"; mv "$0.new" "$0"; while :; do sleep 1000; done',
    ]
    process = start([sys.executable, "-c", HASTY, "", "", *deaf, str(tmp_path / "pid")])
    until((tmp_path / "pid").exists)
    process.stdin.close()
    assert process.wait(20) == 128 + signal.SIGKILL
    assert not alive(pid_in(tmp_path / "pid"))


def test_frozen_command(start, until, alive, tmp_path):
    """A frozen command is stopped in order, too."""
    process = start(guard.command_line([*SLEEPER, str(tmp_path / "pid")]))
    until((tmp_path / "pid").exists)
    os.kill(pid_in(tmp_path / "pid"), signal.SIGSTOP)
    process.stdin.close()
    assert process.wait(20) == 128 + signal.SIGINT


@linux
def test_orphans(start, until, alive, tmp_path):
    """What the command leaves behind is ended, frozen or not."""
    family = ["/bin/sh", "-c", 'sleep 1000 & echo $! > "$0.new"; mv "$0.new" "$0"; exec sleep 1000']
    process = start([sys.executable, "-c", HASTY, "", "", *family, str(tmp_path / "pid")])
    until((tmp_path / "pid").exists)
    orphan = pid_in(tmp_path / "pid")
    os.kill(orphan, signal.SIGSTOP)
    process.stdin.close()
    process.wait(20)
    assert not alive(orphan)
