"""A scheduler of its own, as `fastrun up` starts it: certificates, Postgres, one process."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fastrun.bench.scheduler.processor_time import apart
from fastrun.local import certificates, environment
from fastrun.local.child import Child, Lifeline
from fastrun.local.errors import LocalError
from fastrun.local.folder import DataFolder
from fastrun.local.log_file import LogFile
from fastrun.local.postgres import Postgres
from fastrun.local.supervised import Database, tls_settings

START_S = 60.0
STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """A scheduler that serves."""

    address: str
    pid: int
    certs: Path
    """A folder for each role."""


@asynccontextmanager
async def deployed(*, database: bool, environ: Mapping[str, str]) -> AsyncIterator[Deployment]:
    """Run a scheduler on a core of its own, and leave nothing behind.

    Args:
        database: the row of the leader is in a Postgres of its own, as in a stack.
        environ: our own; settings of the scheduler in it stand.

    Raises:
        LocalError: it cannot run here.
    """
    folder, lifeline = DataFolder.temporary(), Lifeline()
    postgres = Postgres(folder.postgres, durable=False, remove=folder.path) if database else None
    kept = Database(postgres) if postgres else None
    parts: list[Child] = []
    environ = {name: value for name, value in environ.items() if name != "DATABASE_URL"}

    def child(name: str, *arguments: str, **settings: str) -> Child:
        log = LogFile(folder.logs / f"{name}.log")
        parts.append(
            Child(
                name,
                [*arguments],
                {**environ, **settings},
                lifeline=lifeline,
                log=log,
                on_line=_ignore,
            )
        )
        return parts[-1]

    try:
        folder.acquire()
        certificates.provide(folder.certs, certificates.EVERYONE, datetime.now(UTC))
        if kept is not None:
            environ["DATABASE_URL"] = await kept.start()
            status, complaint = await child("migrate", "-m", "fastrun.cli", "migrate").run()
            if status:
                raise LocalError(f"migrate failed: {complaint}")
        settings = environment.of_service({}, "scheduler", tls_settings(folder.certs / "scheduler"))
        scheduler = child("scheduler", "-m", "scheduler", **settings)
        with apart():
            ports = await scheduler.start(START_S)
        assert scheduler.pid is not None
        yield Deployment(f"{environment.LOOPBACK}:{ports['grpc']}", scheduler.pid, folder.certs)
    finally:
        for part in reversed(parts):
            await part.stop(STOP_S)
        if kept is not None:
            await kept.stop()
        lifeline.close()
        folder.release()


def _ignore(line: str) -> None:
    """Leave it to the log: sessions come and go here as planned."""
