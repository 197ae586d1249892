"""Logs as structured events: console on a terminal, JSON lines elsewhere, one formatter for all.

Of an exception that is logged, by ours or by a library, the formatter tells where it came from and
never its message, which may quote a client.
"""

import asyncio
import json
import logging
import sys
import traceback
from contextlib import suppress
from typing import Any, TextIO

import orjson
import structlog

from fastrun.service.terminal import printable, printable_lines

log = structlog.get_logger()

LEVELS = ("debug", "info", "warning", "error")


def configure(service: str, *, level: str = "info", stream: TextIO | None = None) -> None:
    """Send structlog's events and the standard library's records through one formatter.

    Args:
        service: stands in every line.
        level: one of LEVELS.
        stream: where lines go; default stderr. A terminal gets coloured text, all else JSON.
    """
    stream = stream or sys.stderr
    number = logging.getLevelName(level.upper())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        traced,
        _named(service),
    ]
    renderers: list[structlog.typing.Processor]
    if stream.isatty():
        renderers = [_printable, structlog.dev.ConsoleRenderer()]
    else:
        renderers = [structlog.processors.JSONRenderer(serializer=_dumps)]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    # aiohttp's access log repeats what the edge logs itself.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    # Not through the standard library's logging, which costs twice as much as all the rest.
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=_Lines(stream),
        cache_logger_on_first_use=True,
    )


class _LineLogger(structlog.WriteLogger):
    """Writes lines, and has the name of the module that writes them.

    A line that cannot be written is lost: neither a full disk nor a closed pipe fails a request.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        super().__init__(stream)
        self.name = name

    def msg(self, message: str) -> None:
        """Write a line."""
        with suppress(OSError, ValueError):
            super().msg(message)

    debug = info = warning = error = critical = exception = msg


class _Lines:
    """Makes the loggers that write to one stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._named = structlog.stdlib.LoggerFactory(ignore_frame_names=[__name__])

    def __call__(self, *names: Any) -> _LineLogger:
        return _LineLogger(self._stream, self._named(*names).name)


def on_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what an event loop has caught: its own words have the values of a callback."""
    reason = context["message"].partition("(")[0]
    log.error("callback_failed", reason=reason, exc_info=context.get("exception"))


def trace(error: BaseException) -> str:
    """Say where an error came from: its traceback without messages, which may quote a client."""
    return "\n".join(_frames(each) for each in reversed(_causes(error)))


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and all that it came from, the last first."""
    causes: list[BaseException] = []
    found: list[BaseException | None] = [error]
    while found:
        each = found.pop()
        if each is None or each in causes:
            continue
        causes.append(each)
        hidden = None if each.__suppress_context__ else each.__context__
        found.append(each.__cause__ or hidden)
        if isinstance(each, BaseExceptionGroup):
            found += each.exceptions
    return causes


def _frames(error: BaseException) -> str:
    return "".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__


def traced(
    _logger: Any, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Put where an exception came from in its place: a processor of structlog."""
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()
    error = info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        event["trace"] = trace(error)
    return event


def _named(service: str) -> structlog.typing.Processor:
    def add(
        _logger: Any, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        event["service"] = service
        return event

    return add


def _printable(
    _logger: Any, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Make text of clients, also where it stands within another value, harmless to a terminal."""
    shown = {
        name: value
        if isinstance(value, int | float | None)
        else printable(value if isinstance(value, str) else repr(value))
        for name, value in event.items()
    }
    for name, shown_as in _BLOCKS.items():
        if name in shown:
            del shown[name]
            shown[shown_as] = printable_lines(event[name])
    return shown


_BLOCKS = {"stack": "stack", "trace": "exception"}
"""Values of several lines, and as what the console renderer puts them on lines of their own."""


def _dumps(event: Any, **_options: Any) -> str:
    try:
        return orjson.dumps(event, default=str).decode()
    except TypeError:  # half a surrogate pair, a number of more than 64 bits, a key that is no text
        return json.dumps(event, default=str, skipkeys=True)
