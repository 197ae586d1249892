"""A worker that a command starts for itself: on a free port, and without a fleet."""

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from fastrun.cli.errors import CommandError
from fastrun.local.child import Child, Lifeline
from fastrun.local.errors import LocalError
from fastrun.local.log_file import LogFile

# What ties a worker to a fleet, and what it must not share with a worker that runs here already.
_FLEET = (
    *("TLS_CERT", "TLS_KEY", "TLS_CA", "RENEW_ADDRESS"),
    *("SCHEDULER_ADDRESSES", "ADVERTISE_ADDRESS", "WORKER_ID"),
)


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Make the environment of such a worker; pure.

    Args:
        environ: ours; what it says of engine and model stands.
    """
    names = {f"FASTRUN_WORKER_{name}{end}" for name in _FLEET for end in ("", "_FILE")}
    return {
        **{name: value for name, value in environ.items() if name not in names},
        # Empty rather than absent: a settings file may name them, too.
        **{f"FASTRUN_WORKER_{name}": "" for name in _FLEET},
        "FASTRUN_WORKER_STANDALONE": "true",
        "FASTRUN_WORKER_LISTEN": "127.0.0.1:0",
        "FASTRUN_WORKER_ADMIN_LISTEN": "127.0.0.1:0",
    }


class OwnWorker:
    """One worker process at a time; to be used as a context, which ends it.

    Args:
        environ: ours; what it says of engine and model stands.
        start_limit_s: how long loading a model may take.
        stop_limit_s: how long ending may take.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        start_limit_s: float,
        stop_limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.log = Path(tempfile.mkdtemp(prefix="fastrun-smoke-")) / "worker.log"
        """Its words; kept until they are forgotten."""
        self._environ = environment(environ)
        self._start_limit_s = start_limit_s
        self._stop_limit_s = stop_limit_s
        self._clock = clock
        self._file = LogFile(self.log)
        self._lifeline = Lifeline()
        self._child: Child | None = None

    async def __aenter__(self) -> Self:
        """Nothing runs yet."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End what runs."""
        if self._child is not None:
            await self._child.stop(self._stop_limit_s)
        self._lifeline.close()
        self._file.close()

    def forget_log(self) -> None:
        """Remove its words, once it has ended."""
        shutil.rmtree(self.log.parent, ignore_errors=True)

    async def start(self) -> tuple[str, float]:
        """Start it and wait until it serves.

        Returns:
            host:port, and the seconds that it took.

        Raises:
            CommandError: it does not start.
        """
        began = self._clock()
        self._child = Child(
            "the worker",
            ["-m", "gpu_worker"],
            self._environ,
            lifeline=self._lifeline,
            log=self._file,
            on_line=lambda _line: None,
        )
        try:
            ports = await self._child.start(self._start_limit_s)
        except LocalError as error:
            raise CommandError(str(error)) from error
        return f"127.0.0.1:{ports['grpc']}", self._clock() - began

    async def stop(self) -> tuple[int, float]:
        """Ask it to end, as a supervisor would.

        Returns:
            Its exit status, -n after signal n, and the seconds that it took.
        """
        assert self._child is not None
        began = self._clock()
        await self._child.stop(self._stop_limit_s)
        status, self._child = await self._child.wait(), None
        return status, self._clock() - began
