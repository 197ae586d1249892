"""Every log line through one formatter."""

import asyncio
import functools
import gc
import io
import json
import logging
import os
import sys
from contextlib import suppress

import pytest
import structlog

from fastrun.service import logs

SECRET = "Swordfish"


@pytest.fixture
def lines():
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    stream = io.StringIO()
    logs.configure("edge", stream=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers[:], level = before[0], before[1]
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def test_events_are_json_lines_with_values(lines):
    """An event has its name, its values, its level, its service and the bound request id."""
    structlog.contextvars.bind_contextvars(request_id="r1")
    structlog.get_logger("here").info("request_finished", tokens=3)
    (line,) = lines()
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "request_finished",
        "tokens": 3,
        "level": "info",
        "logger": "here",
        "service": "edge",
        "request_id": "r1",
    }


def test_standard_library_goes_the_same_way(lines):
    """A library's record comes out in the same form."""
    logging.getLogger("asyncpg").warning("lost %s", "it")
    (line,) = lines()
    assert (line["event"], line["service"], line["level"]) == ("lost it", "edge", "warning")


@pytest.mark.parametrize("logger", [structlog.get_logger(), logging.getLogger("aiohttp.server")])
def test_exceptions_stay_in_their_line_and_keep_their_words(lines, logger):
    """A trace is a value of its event and has no messages, also where a library logs it."""

    def fail():
        raise ValueError(SECRET)

    try:
        fail()
    except ValueError as error:
        logger.exception("call_failed")
        logger.warning("call_failed", exc_info=error)
    for line in lines():
        assert ", in fail\n" in line["trace"]
        assert line["trace"].endswith("\nValueError")
        assert SECRET not in str(line)


async def test_what_an_event_loop_catches_is_told_without_values(lines):
    """Neither the arguments of a callback, nor what a forgotten task raised, are in its line."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(logs.on_loop_error)
    try:
        loop.call_soon(int, SECRET)
        loop.call_soon(functools.partial(int, SECRET))
        task = asyncio.create_task(asyncio.to_thread(int, SECRET))
        await asyncio.wait([task])
        del task
        gc.collect()
    finally:
        loop.set_exception_handler(before)
    caught = lines()
    assert [each["event"] for each in caught] == ["callback_failed"] * 3
    assert caught[-1]["reason"] == "Task exception was never retrieved"
    assert {each["trace"].rpartition("\n")[2] for each in caught} == {"ValueError"}
    assert SECRET not in str(caught)


def test_a_trace_has_no_messages():
    """Frames and types of an error and its causes, the first cause first; never their words."""

    def fail():
        try:
            int("Swordfish")
        except ValueError as error:
            raise KeyError("Swordfish") from error

    with pytest.raises(KeyError) as caught:
        fail()
    text = logs.trace(caught.value)
    first, second = text.index("ValueError\n"), text.index("\nKeyError")
    assert first < second
    assert ", in fail\n" in text
    assert "literal" not in text


async def test_a_trace_has_all_of_a_group():
    """What tasks of a group raised says where the fault is, not where they were waited for."""

    async def fail():
        raise ValueError(SECRET)

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
    text = logs.trace(caught.value)
    assert ", in fail\n" in text
    assert text.index("ValueError\n") < text.index("\nExceptionGroup")
    assert SECRET not in text


def test_terminal(lines):
    """At a terminal no value, however deep, nor a trace's text moves the cursor or forges a line."""
    stream = io.StringIO()
    stream.isatty = lambda: True
    logs.configure("edge", stream=stream)
    log = structlog.get_logger()
    log.warning("refused", path="/\x1b[2J\nforged", models=["\x1b]0;title\x07"])
    logging.getLogger("aiohttp").warning("got %s", "\x1b[2J\nforged")
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        log.exception("call_failed")

    text = stream.getvalue()
    assert text.endswith("\nValueError\n")
    assert not [each for each in ("\x1b[2J", "\x1b]", "\x07") if each in text]
    assert not any(line.startswith("forged") for line in text.splitlines())


def test_what_cannot_be_written_harms_nobody(lines):
    """Where lines can go nowhere, such as to a full disk or a pipe that nobody reads, work goes on."""
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(BrokenPipeError), os.fdopen(writer, "w") as stream:
        logs.configure("edge", stream=stream)
        for level in logs.LEVELS:
            getattr(structlog.get_logger(), level)("happened")
        try:
            raise ValueError("broken")
        except ValueError:
            structlog.get_logger().exception("call_failed")
    structlog.get_logger().info("stream_closed")


@pytest.mark.parametrize("value", ["\udcff", 1 << 64, {1: "one"}, {(1,): "one"}])
def test_a_value_without_json_has_a_line_all_the_same(lines, value):
    """A value that strict JSON has no form for neither fails who logs it nor costs the line."""
    structlog.get_logger().info("happened", value=value)
    (line,) = lines()
    assert line["event"] == "happened"


def test_level_filters(lines):
    """Debug events stay silent at the level info."""
    structlog.get_logger().debug("detail")
    logging.getLogger("grpc").debug("detail")
    assert lines() == []


def test_stderr_is_the_default(capsys):
    """Without a stream the lines go to stderr, so that stdout stays for people."""
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    try:
        logs.configure("edge")
        assert root.handlers[0].stream is sys.stderr
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        structlog.reset_defaults()
