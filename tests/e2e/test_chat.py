"""`fastrun chat` with a running stack: once, piped, and as a conversation at a terminal."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from stacks import FASTRUN

# Takes the terminal for its own, as Ctrl-C needs it, and becomes the program. Where tests run in the
# background their children would ignore Ctrl-C.
AT_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def chat(shared_machine, slow_stack):
    """Run it once with a question; what is piped in may follow."""

    def run(*arguments, piped="", **environ):
        return subprocess.run(
            (*FASTRUN, "chat", *arguments),
            check=False,
            input=piped,
            capture_output=True,
            text=True,
            env={**shared_machine.environ, **slow_stack.environ, **environ},
            timeout=60,
        )

    return run


class Terminal:
    """A program at a terminal of its own."""

    def __init__(self, master):
        self.master = master
        self.shown = ""

    def type(self, text):
        os.write(self.master, text.encode())

    def interrupt(self, eventually):
        """Press Ctrl-C at a prompt until there is a new one: readline misses what comes too soon."""

        def pressed():
            self.type("\x03")
            return bool(select.select([self.master], [], [], 1)[0])

        assert eventually(pressed, 30)
        self.wait_for("> ")

    def wait_for(self, text, timeout_s=30):
        """Read until a text is shown; returns all up to there, which is then forgotten."""
        deadline = time.monotonic() + timeout_s
        while text not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} is not shown: {self.shown!r}"
            if select.select([self.master], [], [], 1)[0]:
                self.shown += os.read(self.master, 4096).decode(errors="replace")
        before, _, self.shown = self.shown.partition(text)
        return before


@contextmanager
def at_terminal(arguments, environ):
    master, slave = pty.openpty()
    process = subprocess.Popen(
        (sys.executable, "-c", AT_TERMINAL, *FASTRUN, "chat", *arguments),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**environ, "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield process, Terminal(master)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_once(chat):
    """A question as an argument is answered on stdout, and nothing else is there."""
    done = chat("[[text=Hello there.]]")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello there.\n", "")


def test_piped(chat):
    """What is piped in is the question, or stands below it."""
    assert chat(piped="[[text=Piped.]]").stdout == "Piped.\n"
    assert chat("Summarize:", piped="[[text=Both.]]").stdout == "Both.\n"
    nothing = chat()
    assert nothing.returncode == 1
    assert "there is no question: give it, or pipe it in" in nothing.stderr


def test_json(chat, slow_stack):
    """With --json there is one line that says all of the answer."""
    done = chat("[[tokens=3]]", "--json", "--max-tokens", "2")
    answer = json.loads(done.stdout)
    assert answer["model"] == slow_stack.ready["model"]
    assert len(answer["content"]) == 2
    assert answer["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 2


def test_stack_of_a_folder(shared_machine, slow_stack):
    """A stack that runs here is found by its data folder, with key and model."""
    done = shared_machine.run("chat", "[[text=Found.]]", "--data", slow_stack.ready["data"])
    assert (done.returncode, done.stdout) == (0, "Found.\n")
    of_others = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "OPENAI_API_KEY": "sk-other"}
    arguments = ("chat", "[[text=Found.]]", "--data", slow_stack.ready["data"])
    assert shared_machine.run(*arguments, **of_others).stdout == "Found.\n"
    assert "invalid or missing API key" in shared_machine.run(*arguments, "--key", "fr_x").stderr


def test_context(shared_machine, slow_stack, chat, tmp_path):
    """A context says where the API is; the key is one's own."""
    context = tmp_path / "ada.toml"
    made = shared_machine.run(
        *("operator", "add", "ada", "--data", slow_stack.ready["data"], "-o", str(context))
    )
    assert made.returncode == 0, made.stderr
    done = chat("[[text=By context.]]", "--context", str(context), OPENAI_BASE_URL="http://no/v1")
    assert (done.returncode, done.stdout) == (0, "By context.\n")


def test_refused(chat, machine):
    """What is refused, and what is not there, is one sentence on stderr and status 1."""
    refused = chat("Hi", OPENAI_API_KEY="fr_wrong")
    assert (refused.returncode, refused.stderr) == (1, "fastrun: invalid or missing API key\n")
    nobody = chat("Hi", OPENAI_BASE_URL="http://127.0.0.1:1/v1")
    assert nobody.returncode == 1
    assert "nothing answers at http://127.0.0.1:1/v1" in nobody.stderr
    nothing = machine.run("chat", "Hi")
    assert nothing.returncode == 1
    assert "nothing runs here: start it with fastrun up" in nothing.stderr


def test_conversation(shared_machine, slow_stack, eventually):
    """Ctrl-C stops an answer, which frees its slot, and not the program; Ctrl-D ends it."""
    environ = {**shared_machine.environ, **slow_stack.environ}
    with at_terminal((), environ) as (process, terminal):
        terminal.wait_for("Ctrl-D ends.")
        terminal.wait_for("> ")
        terminal.type("[[text=First.]]\n")
        terminal.wait_for("\nFirst.")
        terminal.wait_for("> ")
        terminal.type("go on for long\n")
        terminal.wait_for("\n")
        assert eventually(lambda: slow_stack.slots_in_use() == 1)
        assert select.select([terminal.master], [], [], 30)[0]
        terminal.type("\x03")
        terminal.wait_for("> ")
        assert eventually(lambda: slow_stack.slots_in_use() == 0)
        terminal.type("thrown away")
        terminal.wait_for("thrown away")
        terminal.interrupt(eventually)
        terminal.type("[[text=Still here.]]\n")
        terminal.wait_for("\nStill here.")
        terminal.wait_for("> ")
        terminal.type("/new\n")
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert process.wait(30) == 0
