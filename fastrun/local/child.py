"""One service as a child process: started, waited for until it serves, stopped in bounded time."""

import asyncio
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from fastrun.local.errors import LocalError
from fastrun.local.log_file import LogFile
from fastrun.service.parent import PARENT_PIPE, READY_PIPE

_TAIL_LINES = 20
_KILLED_S = 5.0


class Lifeline:
    """A pipe that ends with this process, however it ends; its reading end goes to every child."""

    def __init__(self) -> None:
        self.descriptor, self._writing = os.pipe()

    def close(self) -> None:
        """Let every child that still holds on end at once."""
        for descriptor in (self._writing, self.descriptor):
            os.close(descriptor)


class Child:
    """A process that runs one of our modules.

    Args:
        name: what people call it.
        arguments: what follows `python`, such as `-m edge`.
        environ: the whole environment, without the pipes.
        lifeline: what it dies with.
        log: where its output goes.
        on_line: told of each line of its output.
    """

    def __init__(
        self,
        name: str,
        arguments: list[str],
        environ: Mapping[str, str],
        *,
        lifeline: Lifeline,
        log: LogFile,
        on_line: Callable[[str], None],
    ) -> None:
        self.name = name
        self._arguments = arguments
        self._environ = environ
        self._lifeline = lifeline
        self._log = log
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Its process id; None before it was started."""
        return None if self._process is None else self._process.pid

    async def start(self, timeout_s: float) -> dict[str, int]:
        """Start it and wait until it serves.

        Returns:
            The ports it listens on, by name.

        Raises:
            LocalError: it cannot serve; it has ended.
        """
        try:
            ready, telling = os.pipe()
        except OSError as error:
            raise self._not_made(error) from error
        try:
            await self._spawn(telling)
        except BaseException:
            os.close(ready)
            raise
        finally:
            os.close(telling)
        try:
            said = await asyncio.wait_for(_read_line(ready), timeout_s)
        except TimeoutError:
            await self.kill()
            raise LocalError(
                f"{self.name} was not ready after {timeout_s:.0f} s: see {self._log.path}"
            ) from None
        message = json.loads(said) if said else {}
        if "ports" in message:
            ports: dict[str, int] = message["ports"]
            return ports
        status = await self._ended()
        reason = message.get("error") or self._complaint() or f"it ended with {told(status)}"
        raise LocalError(f"{self.name} could not start: {reason}")

    async def run(self) -> tuple[int, str]:
        """Run it to its end, for one that does its work and ends.

        Returns:
            Its exit status and what it complained of last.

        Raises:
            LocalError: there can be no process.
        """
        await self._spawn(None)
        return await self.wait(), self._complaint()

    async def wait(self) -> int:
        """Wait for its end; return its exit status, -n after signal n."""
        assert self._process is not None
        assert self._reading is not None
        status = await self._process.wait()
        # What it has left behind may hold its output open for ever.
        await asyncio.wait({self._reading}, timeout=1)
        return status

    async def stop(self, grace_s: float) -> None:
        """Ask it to stop, and end it when it has not after grace_s seconds. Idempotent."""
        if self._process is None or self._process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self.wait(), grace_s)
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """End it at once, and everything in its session."""
        self.kill_now()
        if self._process is not None:
            with suppress(TimeoutError):  # the kernel holds on to it: nothing more can be done
                await asyncio.wait_for(self.wait(), _KILLED_S)

    def kill_now(self) -> None:
        """Send SIGKILL and wait for nothing."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _spawn(self, telling: int | None) -> None:
        environ = {**self._environ, PARENT_PIPE: str(self._lifeline.descriptor)}
        descriptors = [self._lifeline.descriptor]
        if telling is not None:
            environ[READY_PIPE] = str(telling)
            descriptors.append(telling)
        # -P: a folder `edge` where somebody calls fastrun is not our edge.
        # A session of its own: Ctrl-C is for the parent alone, which stops all in order.
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", *self._arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=environ,
                pass_fds=descriptors,
                start_new_session=True,
            )
        except OSError as error:  # too many files or processes, or no memory
            raise self._not_made(error) from error
        self._reading = asyncio.create_task(self._read())

    def _not_made(self, error: OSError) -> LocalError:
        return LocalError(f"{self.name} could not start: {error.strerror or error}")

    async def _ended(self) -> int:
        try:
            return await asyncio.wait_for(self.wait(), _KILLED_S)
        except TimeoutError:
            await self.kill()
            return -signal.SIGKILL

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        rest = b""
        while data := await self._process.stdout.read(1 << 16):
            self._log.write(data)
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-(1 << 20) :]
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                self._tail.append(text)
                self._on_line(text)

    def _complaint(self) -> str:
        """Its last words that say what is wrong, without the name of an exception's class."""
        for line in reversed(self._tail):
            if line and not line.startswith(("{", " ")):
                return line
        return ""


def told(status: int) -> str:
    """An exit status as people say it."""
    if status >= 0:
        return f"status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"{name} (is there enough memory?)" if -status == signal.SIGKILL else name


async def _read_line(descriptor: int) -> bytes:
    """Read a line from a pipe, which is closed then."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    try:
        return await reader.readline()
    finally:
        transport.close()
