"""The parts of a stack: what starts beside what, what waits for what, and how all of it stops."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from fastrun.local import environment
from fastrun.local.child import Child, Lifeline
from fastrun.local.errors import LocalError
from fastrun.local.folder import DataFolder, State
from fastrun.local.log_file import LogFile
from fastrun.local.output import Output
from fastrun.local.postgres import Postgres
from fastrun.local.served_model import served_model
from fastrun.local.supervised import Database, Part, Plan, Service, Surroundings, keep
from fastrun.service import config

LOAD_S = 900.0  # a worker may have to convert its model first
RENEWAL_S = 6 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `fastrun up` was asked for."""

    port: int = 8000
    """The public one; 0 takes a free one."""
    workers: int = 1
    edges: int = 1
    schedulers: int = 1
    worker_settings: Mapping[str, object]
    """Of every worker, by field name."""


class Stack:
    """All parts, from nothing to serving and back.

    Args:
        options: what was asked for.
        folder: where data goes; its lock is ours.
        output: what people see.
        environ: our own environment; DATABASE_URL of it replaces our own Postgres.
    """

    def __init__(
        self, options: Options, folder: DataFolder, output: Output, environ: Mapping[str, str]
    ) -> None:
        self._options = options
        self._folder = folder
        self._output = output
        self._lifeline = Lifeline()
        self._around = Surroundings(environ, self._lifeline, folder.logs, folder.certs, output)
        self._setup_log = LogFile(folder.logs / "setup.log")
        self._reserved: socket.socket | None = None
        self._jobs: list[Child] = []
        self._database = _database(folder, environ)
        self._url = ""
        """Where the database is."""
        self._auth: Service | None = None
        self._schedulers: list[Service] = []
        self._workers: list[Service] = []
        self._edges: list[Service] = []
        self._keeping: list[asyncio.Task[None]] = []

    @property
    def lifeline(self) -> Lifeline:
        """What everything that must not outlive this process holds on to."""
        return self._lifeline

    def processes(self) -> dict[str, int]:
        """Return the ids of the services that run, by what people call them, such as `worker 2`."""
        services = (self._auth, *self._schedulers, *self._workers, *self._edges)
        return {each.name: each.pid for each in services if each is not None and each.pid}

    async def start(self) -> State:
        """Start everything and wait until a model can be asked.

        Returns:
            Where it is reached.

        Raises:
            LocalError: a part cannot start; stop() is to be called then, too.
        """
        try:
            async with asyncio.TaskGroup() as group:
                certificates = group.create_task(self._provide_certificates())
                # Schedulers wait for the database by themselves, and workers for nobody.
                url = self._expected_url()
                auth = group.create_task(self._start_auth(certificates, url))
                await certificates
                self._schedulers = self._make_schedulers(url)
                await _together(scheduler.start() for scheduler in self._schedulers)
                self._workers = [self._worker(number) for number in _count(self._options.workers)]
                for worker in self._workers:
                    group.create_task(worker.start())
                address = await auth
                if self._url != url:
                    await self._move_schedulers()
                key = group.create_task(self._provide_key(address))
                self._edges = self._make_edges(address)
                for edge in self._edges:
                    group.create_task(edge.start())
                await key
        except ExceptionGroup as failures:
            raise _first(failures) from None
        assert self._auth is not None
        base_url = f"http://{self._edges[0].address}/v1"
        model = await served_model(base_url, self._folder.api_key.read_text())
        parts: list[Part] = [self._auth, *self._schedulers, *self._workers, *self._edges]
        if self._database is not None:
            parts.append(self._database)
        self._keeping = [asyncio.create_task(keep(part, self._output)) for part in parts]
        self._keeping.append(asyncio.create_task(self._renew_certificates()))
        return State(
            pid=os.getpid(),
            base_url=base_url,
            model=model,
            auth_address=self._auth.address,
            scheduler_address=self._schedulers[0].address,
            scheduler_addresses=self._scheduler_addresses(),
        )

    async def stop(self) -> None:
        """Stop all in order, within bounds: no step can fail. Idempotent."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await _together(job.kill() for job in self._jobs)
        await _together(edge.stop() for edge in self._edges)
        await _together(worker.stop() for worker in self._workers)
        await _together(scheduler.stop() for scheduler in self._schedulers)
        if self._auth is not None:
            await self._auth.stop()
        if self._database is not None:
            await self._database.stop()
        if self._reserved is not None:
            self._reserved.close()
        self._setup_log.close()

    def kill_now(self) -> None:
        """End all services at once; Postgres ends by itself when this process has ended."""
        for job in self._jobs:
            job.kill_now()
        for service in (*self._edges, *self._workers, *self._schedulers, self._auth):
            if service is not None:
                service.kill_now()

    async def _provide_certificates(self) -> None:
        await asyncio.to_thread(_provide_certificates, self._folder.certs)

    async def _renew_certificates(self) -> None:
        """Make certificates anew before they end; the services see by themselves that they did."""
        while True:
            await asyncio.sleep(RENEWAL_S)
            try:
                await self._provide_certificates()
            except LocalError as error:
                self._output.say(str(error))

    def _expected_url(self) -> str:
        if self._database is None:
            return environment.database_url(self._around.environ) or ""
        return self._database.expected_dsn()

    async def _start_auth(self, certificates: Awaitable[None], url: str) -> str:
        """Start the auth service and what it needs; return its address.

        Args:
            certificates: the service needs them.
            url: where the database is going to be.
        """
        self._url = url if self._database is None else await self._database.start()
        surroundings = self._with_database(self._url)
        await self._job("migrate", ["-m", "fastrun.cli", "migrate"], surroundings.environ)
        await certificates
        pepper = {} if _has_pepper(surroundings.environ) else {"pepper_file": self._folder.pepper()}
        self._auth = Service(
            Plan(name="auth", module="auth_service", service="auth", settings=pepper), surroundings
        )
        await self._auth.start()
        return self._auth.address

    async def _provide_key(self, auth_address: str) -> None:
        arguments = [auth_address, str(self._folder.certs / "operator"), str(self._folder.api_key)]
        await self._job(
            "development key", ["-m", "fastrun.local.dev_key", *arguments], self._around.environ
        )

    async def _job(self, name: str, arguments: list[str], environ: Mapping[str, str]) -> None:
        """Run a process that does its work and ends.

        Raises:
            LocalError: it failed.
        """
        job = Child(
            name,
            arguments,
            environ,
            lifeline=self._lifeline,
            log=self._setup_log,
            on_line=lambda line: self._output.line_of(name, line),
        )
        self._jobs.append(job)
        status, complaint = await job.run()
        if status != 0:
            raise LocalError(f"{name} failed: {complaint.removeprefix('fastrun: ')}")

    def _with_database(self, url: str) -> Surroundings:
        own = self._database is not None
        environ = environment.with_database(self._around.environ, url, own=own)
        return replace(self._around, environ=environ)

    def _make_schedulers(self, url: str) -> list[Service]:
        surroundings, count = self._with_database(url), self._options.schedulers
        names = ["scheduler"] if count == 1 else [f"scheduler {each}" for each in _count(count)]
        return [
            Service(Plan(name=name, module="scheduler", service="scheduler"), surroundings)
            for name in names
        ]

    async def _move_schedulers(self) -> None:
        """Start them again: somebody took the port of the database, and it has another one."""
        former = self._schedulers
        await _together(scheduler.stop() for scheduler in former)
        around = self._with_database(self._url)
        self._schedulers = [Service(each.plan, around, each.port) for each in former]
        await _together(scheduler.start() for scheduler in self._schedulers)

    def _scheduler_addresses(self) -> list[str]:
        return [scheduler.address for scheduler in self._schedulers]

    def _worker(self, number: int) -> Service:
        name = "worker" if self._options.workers == 1 else f"worker {number}"
        plan = Plan(
            name=name,
            module="gpu_worker",
            service="worker",
            settings={
                "worker_id": name.replace(" ", "-"),
                "scheduler_addresses": self._scheduler_addresses(),
                "threads": self._threads(),
                **self._options.worker_settings,
            },
            # The schedulers hear from it where it is.
            keeps_port=False,
            start_s=LOAD_S,
        )
        return Service(plan, self._around)

    def _threads(self) -> int | None:
        """Share the cores among the workers; one alone takes them all by itself."""
        workers = self._options.workers
        if workers == 1 or config.explicit("worker", "threads", self._around.environ):
            return None
        return max(1, (os.cpu_count() or 1) // workers)

    def _make_edges(self, auth_address: str) -> list[Service]:
        count, port = self._options.edges, self._options.port
        if count > 1:
            # A socket that is bound and never listens keeps the port ours while edges come and go.
            self._reserved = _reserve(port)
            port = self._reserved.getsockname()[1]
        edges = []
        for number in _count(count):
            plan = Plan(
                name="edge" if count == 1 else f"edge {number}",
                module="edge",
                service="edge",
                settings={
                    "auth_address": auth_address,
                    "scheduler_addresses": self._scheduler_addresses(),
                    "spool": self._folder.spool,
                    "reuse_port": count > 1 or None,
                },
                main_port="http",
            )
            edges.append(Service(plan, self._around, port))
        return edges


def _provide_certificates(folder: Path) -> None:
    # Loading it takes a while, which here is while Postgres starts.
    from fastrun.local import certificates  # noqa: PLC0415 - see above

    certificates.provide(folder, certificates.EVERYONE, datetime.now(UTC))


def _database(folder: DataFolder, environ: Mapping[str, str]) -> Database | None:
    # A run that leaves nothing behind must not write into somebody's database.
    if environment.database_url(environ) and not folder.ephemeral:
        return None
    remove = folder.path if folder.ephemeral else None
    return Database(Postgres(folder.postgres, durable=not folder.ephemeral, remove=remove))


def _has_pepper(environ: Mapping[str, str]) -> bool:
    return config.explicit("auth", "pepper", environ) is not None


def _reserve(port: int) -> socket.socket:
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        reserved.bind((environment.LOOPBACK, port))
    except OSError as error:
        reserved.close()
        raise LocalError(f"port {port} is in use: choose another one with --port") from error
    return reserved


def _count(parts: int) -> range:
    return range(1, parts + 1)


async def _together(stopping: Iterable["asyncio._CoroutineLike[None]"]) -> None:
    await asyncio.gather(*stopping)


def _first(failures: ExceptionGroup[Exception]) -> Exception:
    """The failure to tell; anything but a LocalError is a fault of ours and told whole."""
    expected, faults = failures.split(LocalError)
    if faults is not None or expected is None:
        return failures
    found: Exception = expected
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found
