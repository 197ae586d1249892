import io
import json
import os

import pytest

from fastrun.local.folder import State
from fastrun.local.output import Output, instructions

STATE = State(
    pid=1,
    base_url="http://127.0.0.1:8000/v1",
    model="it's tiny",
    auth_address="127.0.0.1:1",
    scheduler_address="127.0.0.1:2",
)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def stream():
    return io.StringIO()


def event(**fields):
    return json.dumps({"event": "auth_lost", "level": "warning", "service": "edge", **fields})


def test_quiet_by_default(stream):
    """Of what services log only warnings and errors are shown, in words."""
    output = Output(stream)
    output.line_of("edge", event(level="info"))
    output.line_of("edge", event(reason="refused", timestamp="2026"))

    assert stream.getvalue() == "edge: warning: auth lost reason=refused\n"


def test_verbose(stream):
    """On request everything is shown, also what is no structured event."""
    output = Output(stream, verbose=True)
    output.line_of("edge", event(level="info"))
    output.line_of("edge", "Traceback")

    assert stream.getvalue() == "edge: auth lost\nedge: Traceback\n"


def test_text_of_clients(stream):
    """What a client has chosen neither moves the cursor nor forges a line, logged well or not."""
    output = Output(stream, verbose=True)
    output.line_of("edge", event(path="/\x1b[2J\nedge: error: forged"))
    output.line_of("edge", "GET /\x1b[2J")

    assert stream.getvalue() == (
        "edge: auth lost path=/\\x1b[2J\\nedge: error: forged\nedge: GET /\\x1b[2J\n"
    )


def test_repeated_warnings(stream):
    """The same warning of a service is shown once in ten seconds."""
    clock = Clock()
    output = Output(stream, clock=clock)
    for clock.now in (0.0, 1.0, 9.0, 10.0):
        output.line_of("edge", event())

    assert stream.getvalue().count("\n") == 2


def test_a_service_that_cannot_start(stream):
    """Why a service did not start is not told here: whoever started it tells it."""
    Output(stream).line_of("edge", event(event="service_not_started", level="error", reason="no"))
    assert stream.getvalue() == ""


def test_silent_while_stopping(stream):
    """What breaks while all is being stopped is no news."""
    output = Output(stream)
    output.quiet = True
    output.line_of("edge", event())

    assert stream.getvalue() == ""


def test_progress_without_a_terminal(stream):
    """Each phase of a long preparation is one line where no bar can be drawn."""
    output = Output(stream)
    for percent in (0, 25, 50):
        output.line_of(
            "worker", event(event="model_preparing", phase="converting", percent=percent)
        )
    output.line_of("worker", event(event="model_loading", level="info"))

    assert stream.getvalue() == "  converting ...\n  loading the model ...\n"


def test_progress_at_a_terminal():
    """At a terminal a bar is drawn and taken away again."""
    stream = io.StringIO()
    stream.isatty = lambda: True
    output = Output(stream)
    output.line_of("worker", event(event="model_preparing", phase="converting", percent=50))
    output.say("done")

    assert "converting" in stream.getvalue()
    assert stream.getvalue().endswith("done\n")


def test_reader_is_gone():
    """A closed terminal stops nothing."""
    stream = io.StringIO()
    stream.close()

    Output(stream).say("hello")


def test_instructions():
    """The instructions hold all that a first request needs, quoted for the shell."""
    text = instructions(STATE, "fr_key", "/my data", ephemeral=False)

    for part in (
        *(STATE.base_url, STATE.model, "fr_key", "/my data"),
        "grpcurl -cacert '/my data/certs/operator/ca.pem' -cert ",
        "-authority scheduler.fastrun 127.0.0.1:2 fastrun.v1.SchedulerService/ListModels",
    ):
        assert part in text
    assert """'{"model": "it'"'"'s tiny",""" in text


def test_nobody_reads():
    """Whoever does not read what is said misses lines, is told how many, and stops nobody."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(reading) as reader, os.fdopen(writing, "w") as stream:
        output = Output(stream)
        for number in range(500):
            output.say(f"{number} " + "x" * 1000)
        *_, last = reader.read().splitlines()
        output.say("read again")
        assert reader.read().splitlines()[-2:] == [
            f"({499 - int(last.split()[0])} lines left out: nobody read them)",
            "read again",
        ]
