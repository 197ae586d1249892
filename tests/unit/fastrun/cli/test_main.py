import os
import subprocess
import sys
from pathlib import Path

import pytest

# Interrupts itself: the signal comes where it is wanted, whatever the machine's speed.
WHILE_LOADING = """
from fastrun.cli import app

def make_app(called):
    os.kill(os.getpid(), signal.SIGINT)
    raise AssertionError("it goes on")

app.make_app = make_app
"""
WHILE_RUNNING = """
from fastrun.cli import app
from fastrun.cli.group import group

def make_app(called):
    made = group()
    made.command()(lambda: os.kill(os.getpid(), signal.SIGINT))
    return made

app.make_app = make_app
"""
REFUSED = r"""
from fastrun.cli import app
from fastrun.cli.errors import CommandError

def make_app(called):
    raise CommandError("no model '\x1b[2J'")

app.make_app = make_app
"""

SAYS = """
from fastrun.cli import app
from fastrun.cli.group import group

def make_app(called):
    made = group()
    made.command()(lambda: print("made", sys.stdin.read(), os.open("/", os.O_RDONLY) > 2))
    return made

app.make_app = make_app
"""
READS = """
from fastrun.cli import app, standard_files

def make_app(called):
    standard_files.read_input()

app.make_app = make_app
"""
SHOWS = """
from fastrun.cli import app, output
from fastrun.cli.group import group

def make_app(called):
    made = group()
    made.command()(lambda: SAYS)
    return made

app.make_app = make_app
"""
CANNOT = """
from fastrun.cli import app

def make_app(called):
    return open("/dev/null/model.toml")

app.make_app = make_app
"""


@pytest.fixture
def run():
    """Run the command line in a process of its own, prepared by some code."""

    def run(preparation, environ=None, closed=(), **files):
        # Where tests run in the background their children would ignore the signal.
        interruptible = "signal.signal(signal.SIGINT, signal.default_int_handler)"
        program = (
            f"import os, signal, sys\n{interruptible}\n{preparation}\n"
            "from fastrun.cli import main\nmain()"
        )
        # By a shell: a fork of this process would run what gRPC does after one, with files missing.
        closing = " ".join(f"{descriptor}>&-" for descriptor in closed)
        return subprocess.run(
            ["/bin/sh", "-c", f'exec "$@" {closing}', "sh", sys.executable, "-c", program],
            check=False,
            text=True,
            env=environ,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **files},
        )

    return run


@pytest.mark.parametrize("preparation", [WHILE_LOADING, WHILE_RUNNING], ids=["loading", "running"])
def test_interrupted(run, preparation):
    """Ctrl-C at any moment ends a command with status 130 and without a trace."""
    done = run(preparation)

    assert (done.returncode, done.stderr) == (130, "")


def test_ignored_interrupts_stay_ignored(run):
    """A command in a shell's background, which Ctrl-C is not for, goes on."""
    done = run("signal.signal(signal.SIGINT, signal.SIG_IGN)" + WHILE_RUNNING)

    assert (done.returncode, done.stderr) == (0, "")


def test_refusal_is_printable(run):
    """What others have chosen within a refusal does not reach the terminal as a command to it."""
    done = run(REFUSED)

    assert done.returncode == 1
    assert done.stderr == "fastrun: no model '\\x1b[2J'\n"


@pytest.mark.parametrize(
    ("ours", "heeded"), [({}, "ERROR"), ({"GRPC_VERBOSITY": "DEBUG"}, "DEBUG")]
)
def test_grpc_is_quiet(run, ours, heeded):
    """What gRPC itself writes is kept to errors unless somebody asks for more."""
    show = WHILE_RUNNING.replace(
        "os.kill(os.getpid(), signal.SIGINT)", "print(os.environ['GRPC_VERBOSITY'])"
    )

    assert run(show, ours).stdout == f"{heeded}\n"


def test_an_argument_that_is_no_text(run):
    """Bytes that are no UTF-8 are refused by one sentence."""
    done = run(r"sys.argv[1:] = ['account', 'create', 'caf\udce9']")
    assert done.returncode == 1
    assert done.stderr == "fastrun: 'caf\\udce9' is not UTF-8: type it anew\n"


@pytest.mark.parametrize("closed", [(0,), (1,), (0, 1, 2)], ids=str)
def test_closed_files(run, closed):
    """What a caller has closed is as good as empty, and no other file takes its place."""
    done = run(SAYS, stdin=subprocess.DEVNULL, closed=closed)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("" if 1 in closed else "made  True\n")


@pytest.mark.skipif(sys.platform != "linux", reason="no other system has a full device")
def test_output_that_cannot_be_written(run):
    """It is told in one sentence, also where Python writes only when it ends."""
    with Path("/dev/full").open("w") as full:
        done = run(SAYS, stdin=subprocess.DEVNULL, stdout=full)
    assert (done.returncode, done.stderr) == (1, "fastrun: No space left on device\n")


def test_output_that_nobody_reads(run):
    """Nothing is told to whoever has stopped to read."""
    reading, writing = os.pipe()
    os.close(reading)
    done = run(SAYS, stdin=subprocess.DEVNULL, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_file_that_cannot_be_had(run):
    """It is named, with the system's reason."""
    done = run(CANNOT)
    assert (done.returncode, done.stderr) == (1, "fastrun: /dev/null/model.toml: Not a directory\n")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_input_that_is_no_text(run, errors):
    """It is refused by one sentence, also where Python lets it through."""
    reading, writing = os.pipe()
    os.write(writing, b"caf\xe9")
    os.close(writing)
    done = run(READS, {**os.environ, "PYTHONIOENCODING": f"utf-8:{errors}"}, stdin=reading)
    os.close(reading)
    assert (done.returncode, done.stderr) == (1, "fastrun: what is piped in is not text in utf-8\n")


@pytest.mark.parametrize(
    ("says", "shown"),
    [("print('Zo\xeb')", "Zo\\xeb\n"), ("output.print_json('Zo\xeb')", '"Zo\\u00eb"\n')],
)
def test_a_terminal_without_a_character(run, says, shown):
    """What it cannot show is shown as its escape, and JSON stays JSON."""
    done = run(SHOWS.replace("SAYS", says), {**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout, done.stderr) == (0, shown, "")
