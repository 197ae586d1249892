"""`fastrun up`: one stack from start to end, with folder, signals and output around it."""

import asyncio
import os
import signal
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fastrun.local import command_guard, environment, output, preflight
from fastrun.local.folder import DataFolder, State, default_path
from fastrun.local.output import Output
from fastrun.local.stack import Options, Stack

DEFAULT_PORT = 8000
COMMAND_S = command_guard.TERM_S + 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What `fastrun up` was asked for."""

    port: int | None = None
    """None: 8000, and a free one where nothing is kept."""
    workers: int = 1
    edges: int = 1
    schedulers: int = 1
    worker_settings: Mapping[str, object] = field(default_factory=dict)
    command: str | None = None
    """Run by `sh -c` once all serves; all ends with it."""
    data: Path | None = None
    ephemeral: bool = False
    reset: bool = False
    json: bool = False
    """Say where it is reached in one line of JSON."""
    verbose: bool = False


def run(request: Request) -> int:
    """Run a stack until a signal or the end of its command.

    Returns:
        The exit status: the command's own, 128 + n if signal n came before it was run, else 0.

    Raises:
        LocalError: it cannot run; nothing is left running.
    """
    preflight.check_machine()
    preflight.check_packages()
    preflight.check_loopback()
    environ = dict(os.environ)
    environment.check_own(environ)
    folder = (
        DataFolder.temporary()
        if request.ephemeral
        else DataFolder((request.data or default_path(environ)).expanduser().absolute())
    )
    try:
        folder.acquire(reset=request.reset)
        if port := _port(request):
            preflight.check_port(port)
        return asyncio.run(_Run(request, folder, environ).live())
    finally:
        folder.release()


class _Run:
    """One run, with the folder taken."""

    def __init__(self, request: Request, folder: DataFolder, environ: Mapping[str, str]) -> None:
        self._request = request
        self._folder = folder
        self._environ = environ
        # What a command writes, or a program reads, is not mixed with what we say.
        apart = request.command is not None or request.json
        self._output = Output(sys.stderr if apart else sys.stdout, verbose=request.verbose)
        self._stopping = asyncio.Event()
        self._signal = 0
        """Which one has set it."""
        self._stack = Stack(
            Options(
                port=_port(request),
                workers=request.workers,
                edges=request.edges,
                schedulers=request.schedulers,
                worker_settings=request.worker_settings,
            ),
            folder,
            self._output,
            environ,
        )

    async def live(self) -> int:
        """Start, serve, stop."""
        self._follow_signals()
        began = time.monotonic()
        self._output.say(f"Starting fastrun in {self._folder.path} ...")
        try:
            state = await self._unless_stopped()
            if state is None:
                return 0 if self._request.command is None else 128 + self._signal
            self._folder.publish(state)
            self._output.say(f"Ready after {time.monotonic() - began:.1f} s.")
            api_key = self._folder.api_key.read_text()
            if self._request.command is not None:
                return await self._command(state, api_key, self._request.command)
            self._tell(state, api_key)
            await self._stopping.wait()
            self._output.say("Stopping ...")
            return 0
        finally:
            self._output.quiet = True
            self._folder.withdraw()
            await self._stack.stop()
            self._output.end_progress()

    async def _unless_stopped(self) -> State | None:
        """Start the stack; None: a signal came before it was ready."""
        starting = asyncio.create_task(self._stack.start())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if starting.done():
            return starting.result()
        self._output.quiet = True
        self._output.say("Stopping ...")
        starting.cancel()
        await asyncio.wait({starting})
        return None

    async def _command(self, state: State, api_key: str, command: str) -> int:
        """Run the command to its end; a signal to us ends it."""
        lifeline = self._stack.lifeline.descriptor
        process = await asyncio.create_subprocess_exec(
            *command_guard.command_line(lifeline, command),
            env=environment.of_command(
                self._environ,
                state,
                api_key,
                data=str(self._folder.path),
                scripts=sysconfig.get_path("scripts"),
            ),
            pass_fds=(lifeline,),
        )
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ended.done():
            process.terminate()
        status = await ended
        return status if status >= 0 else 128 - status  # the guard itself was killed

    def _tell(self, state: State, api_key: str) -> None:
        if self._request.json:
            told = {**msgspec.structs.asdict(state), "api_key": api_key}
            told["data"] = str(self._folder.path)
            sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
            sys.stdout.flush()
            return
        where, ephemeral = str(self._folder.path), self._folder.ephemeral
        self._output.say(output.instructions(state, api_key, where, ephemeral=ephemeral))

    def _follow_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        # At a terminal Ctrl-C goes to the command, too, which decides what it means.
        if number == signal.SIGINT and self._request.command is not None and os.isatty(0):
            return
        if self._stopping.is_set():
            self._stack.kill_now()
            self._folder.release()
            os._exit(128 + number)
        self._signal = number
        self._stopping.set()


def _port(request: Request) -> int:
    if request.port is not None:
        return request.port
    return 0 if request.ephemeral else DEFAULT_PORT
