"""What people see of a stack: progress, warnings of the services, and how to use it."""

import json
import select
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TextIO

from fastrun.local.folder import State
from fastrun.service.identity import Role
from fastrun.service.terminal import printable

PATIENCE_S = 0.1  # a reader that takes nothing for so long misses lines
REPEAT_S = 10.0  # the same warning of a service is shown once in this time
_SHOWN_LEVELS = ("warning", "error", "critical")
# grpcurl's options, and the files of an identity.
_GRPCURL_FILES = (("cacert", "ca"), ("cert", "cert"), ("key", "key"))
_GRPCURL_CALL = "fastrun.v1.SchedulerService/ListModels"
_HIDDEN_FIELDS = ("event", "level", "logger", "service", "timestamp", "trace")
# What a worker says while it makes a model ready: phase and percent, or neither at the last step.
PROGRESS_EVENTS = ("model_preparing", "model_loading")
# Whoever started the service says the same, with its name.
_NOT_STARTED = "service_not_started"


class Output:
    """Writes for people; a reader that is gone, or does not read, does not stop the stack.

    Whoever waited for one would let services wait that have logged something, and start none again.

    Args:
        stream: where to.
        verbose: show all lines of the services, not only what is wrong.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        verbose: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream or sys.stdout
        self._verbose = verbose
        self._clock = clock
        self._shown: dict[tuple[str, str], float] = {}
        self._bar: _Bar | None = None
        self._left_out = 0
        self.quiet = False
        """Set while all is being stopped: what then breaks is no news."""

    def say(self, text: str) -> None:
        """Write a line."""
        self.end_progress()
        self._write(text)

    def line_of(self, service: str, line: str) -> None:
        """Take a line that a service has logged: JSON, or anything if it broke."""
        event = _event(line)
        if event is not None and event.get("event") in PROGRESS_EVENTS:
            self._progress(event)
        elif self._verbose:
            self.say(f"{service}: {printable(line) if event is None else described(event)}")
        elif event is not None and self._is_news(event):
            self._warn(service, event)

    def end_progress(self) -> None:
        """Leave the progress bar's line."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _is_news(self, event: dict[str, Any]) -> bool:
        is_wrong = event.get("level") in _SHOWN_LEVELS and event.get("event") != _NOT_STARTED
        return is_wrong and not self.quiet

    def _warn(self, service: str, event: dict[str, Any]) -> None:
        now = self._clock()
        kind = (service, str(event["event"]))
        if now - self._shown.get(kind, -REPEAT_S) >= REPEAT_S:
            self._shown[kind] = now
            self.say(f"{service}: {event['level']}: {described(event)}")

    def _progress(self, event: dict[str, Any]) -> None:
        if self._bar is None:
            self._bar = _Bar(self._stream, self._write)
        phase = printable(str(event.get("phase", "loading the model")))
        self._bar.move(phase, event.get("percent"))

    def _write(self, text: str) -> None:
        if self._left_out and self._put(f"({self._left_out} lines left out: nobody read them)\n"):
            self._left_out = 0
        if self._left_out or not self._put(text + "\n"):
            self._left_out += 1

    def _put(self, text: str) -> bool:
        """Write unless nobody reads; returns whether all was taken."""
        with suppress(OSError, ValueError):
            for piece in _pieces(text):
                if not _takes_more(self._stream, 0.0 if self._left_out else PATIENCE_S):
                    return False
                self._stream.write(piece)
                self._stream.flush()
        return True


class _Bar:
    """A bar at a terminal, a line for each phase elsewhere."""

    def __init__(self, stream: TextIO, write: Callable[[str], None]) -> None:
        self._write = write
        self._phases: set[str] = set()
        self._rich: Any = None
        if stream.isatty():
            from rich.console import Console  # noqa: PLC0415 - slow, and for terminals only
            from rich.progress import Progress  # noqa: PLC0415 - the same

            self._rich = Progress(console=Console(file=stream), transient=True)
            self._task = self._rich.add_task("", total=None)
            self._rich.start()

    def move(self, phase: str, percent: float | None) -> None:
        """Show what is being done, and how much of it is done; 0 or None: nobody knows."""
        if self._rich is not None:
            total = 100.0 if percent else None
            self._rich.update(self._task, description=phase, total=total, completed=percent or 0)
        elif phase not in self._phases:
            self._phases.add(phase)
            self._write(f"  {phase} ...")

    def close(self) -> None:
        """Take the bar away."""
        if self._rich is not None:
            self._rich.stop()


def described(event: dict[str, Any]) -> str:
    """One line for people out of a structured event; clients may have chosen its values."""
    fields = [f"{name}={value}" for name, value in event.items() if name not in _HIDDEN_FIELDS]
    return printable(" ".join([str(event.get("event", "")).replace("_", " "), *fields]))


def instructions(state: State, api_key: str, data: str, *, ephemeral: bool) -> str:
    """How to use a stack that is ready."""
    body = json.dumps(
        {
            "model": state.model,
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "temperature": 0,
        }
    )
    curl = (
        f"    curl {state.base_url}/chat/completions \\",
        f"      -H 'Authorization: Bearer {api_key}' \\",
        "      -H 'Content-Type: application/json' \\",
        f"      -d {shlex.quote(body)}",
    )
    certs = f"{data}/certs/operator"
    files = (f"-{name} {shlex.quote(f'{certs}/{file}.pem')}" for name, file in _GRPCURL_FILES)
    grpcurl = (
        f"    grpcurl {' '.join(files)} \\",
        f"      -authority {Role.SCHEDULER.dns_name} {state.scheduler_address} {_GRPCURL_CALL}",
    )
    return "\n".join(
        (
            "",
            f"  Base URL  {state.base_url}",
            f"  Model     {state.model}",
            f"  API key   {api_key}",
            f"  Data      {data}{' (removed at the end)' if ephemeral else ''}",
            "",
            "  Try it:",
            *curl,
            *grpcurl,
            "",
            "  Ctrl-C stops everything.",
        )
    )


def _pieces(text: str) -> Iterator[str]:
    """Cut so that each piece can be written without waiting where a pipe takes any, in UTF-8."""
    length = select.PIPE_BUF // 4
    return (text[begin : begin + length] for begin in range(0, len(text), length))


def _takes_more(stream: TextIO, timeout_s: float) -> bool:
    """Tell whether something can be written without waiting, within seconds."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # no file: it takes everything
        return True
    return bool(select.select([], [descriptor], [], timeout_s)[1])


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None
