"""A Postgres of our own: made at the first start, reachable from this machine by password only.

An instance is one folder: `data` (Postgres' own), `password`, `log` and `lock`. All processes of a
running Postgres hold the lock: where it is free nothing runs, whatever a stale postmaster.pid says.
"""

import fcntl
import os
import secrets
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from fastrun.local import guard, postgres_binaries
from fastrun.local.postgres_binaries import ENVIRONMENT, Binaries, PostgresError

__all__ = ["Postgres", "PostgresError"]

USER = "fastrun"
DATABASE = "postgres"

LOCK_S = 30.0  # what a Postgres whose starter has just died may need to stop
START_S = 120.0  # replaying the log after a crash takes its time
STOP_S = 60.0  # more than the guard needs when nothing listens to it
PORT_TRIES = 5

_ELSEWHERE = "choose another folder with --data, or set DATABASE_URL"
_SHARED_MEMORY = "dynamic_shared_memory_type=mmap"  # so a crash leaves nothing in /dev/shm
_NOT_DURABLE = ("-F", "-c", "synchronous_commit=off", "-c", "full_page_writes=off")


class Postgres:
    """One instance; its methods block, so call them in a thread where a loop runs.

    The server dies with the process that called `start`, however that dies.

    Args:
        folder: the instance's own folder, made if it does not exist.
        port: on 127.0.0.1; 0 takes a free one and keeps it for later starts of this object.
        durable: whether data must survive a power cut.
        remove: a folder (usually `folder` or one above it) to remove when the server is stopped,
            also by its starter's death.
    """

    def __init__(
        self, folder: Path, *, port: int = 0, durable: bool = True, remove: Path | None = None
    ) -> None:
        self.folder = folder.absolute()
        self._data = self.folder / "data"
        self._log = self.folder / "log"
        self._port = port
        self._expected_port = 0
        self._durable = durable
        self._remove = remove and remove.absolute()
        self._owner = postgres_binaries.owner()
        self._password = ""
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """Where to connect, password included; known once `start` has returned."""
        if not (self._password and self._port):
            raise RuntimeError("the server was not started yet")
        return self._dsn(self._port)

    def expected_dsn(self) -> str:
        """Choose port and password now; returns the DSN of start(), unless the port is taken then.

        For those that wait for a server by themselves, and may start beside it.
        """
        if not self._password:
            with suppress(OSError):  # start() says what is wrong
                if (self._data / "PG_VERSION").exists():
                    self._password = (self.folder / "password").read_text()
            self._password = self._password or secrets.token_hex(24)
        self._expected_port = self._port or _free_port()
        return self._dsn(self._expected_port)

    def found_dsn(self) -> str | None:
        """Where the server is that another process has started here; None: nobody has."""
        try:
            self._password = (self.folder / "password").read_text()
        except OSError:
            return None
        _, _, _, port, *_ = (*self._status(), "", "", "", "")
        return self._dsn(int(port)) if port else None

    @property
    def running(self) -> bool:
        """Whether the server runs; False also before `start` and after a crash."""
        return self._guard is not None and self._guard.poll() is None

    def start(self) -> str:
        """Start the server, making its data first if there is none; once more: restart it.

        Returns:
            The DSN, once the server accepts connections.

        Raises:
            PostgresError: it cannot run; nothing of it is left running.
        """
        if self._guard is not None:
            _end(self._guard)
            self._guard = None
        try:
            self._prepare_folder()
            lock = self._lock()
            try:
                self._start(lock)
            finally:
                os.close(lock)  # the guard and its server hold it now
        except OSError as error:
            reason = error.strerror or error
            raise PostgresError(
                f"cannot keep a database in {self.folder}: {reason}; {_ELSEWHERE}"
            ) from error
        return self.dsn

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the server to end.

        Returns:
            Its exit status; 128 + n after signal n.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout_s` seconds.
        """
        if self._guard is None:
            raise RuntimeError("the server was not started yet")
        return self._guard.wait(timeout_s)

    def stop(self) -> None:
        """End all sessions, stop the server and remove what is to be removed; idempotent."""
        if self._guard is None:
            return
        _end(self._guard)
        self._guard = None
        if self.folder.exists():
            os.close(self._lock())  # a guard that was killed leaves a server that is still stopping
        if self._remove is not None:
            shutil.rmtree(self._remove, ignore_errors=True)

    def _dsn(self, port: int) -> str:
        return f"postgresql://{USER}:{self._password}@127.0.0.1:{port}/{DATABASE}"

    def _prepare_folder(self) -> None:
        """Make the folder: others may pass through it only if the server is another user's."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._owner is None:
            return
        self.folder.chmod(0o711)
        if not self._owner.can_enter(self.folder):
            raise PostgresError(
                f"user nobody, as which Postgres runs when root starts it, cannot reach "
                f"{_barrier(self.folder)}: {_ELSEWHERE}"
            )

    def _lock(self) -> int:
        """Take the instance's lock; its descriptor is to be passed on to the server."""
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(lock)
                    raise PostgresError(
                        f"the database in {self.folder} is in use by process {self._pid()}: "
                        f"stop it, or choose another folder with --data"
                    ) from None
            time.sleep(0.02)

    def _start(self, lock: int) -> None:
        version = self._data / "PG_VERSION"
        major = int(version.read_text().split(".")[0]) if version.exists() else None
        binaries = postgres_binaries.find(major)
        if self._owner is not None:
            binaries = postgres_binaries.reachable(binaries, self._owner, self.folder)
        if major is None:
            self._create(binaries, lock)
        password = self.folder / "password"
        if not password.exists():
            raise PostgresError(
                f"the password of the database is missing: restore {password}, "
                "or start anew with --reset"
            )
        self._password = password.read_text()
        self._serve(binaries, lock)

    def _create(self, binaries: Binaries, lock: int) -> None:
        """Make the data under another name first, so that half of it is never taken for all."""
        partial = self.folder / "data.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        password = self.folder / "password"
        password.unlink(missing_ok=True)
        with open(password, "x", opener=_private) as file:
            file.write(self._password or secrets.token_hex(24))
        if self._owner is not None:
            for path in (partial, password):
                os.chown(path, self._owner.uid, self._owner.gid)
        command = [
            *(str(binaries.folder / "initdb"), "--pgdata", str(partial), "--username", USER),
            *("--auth", "scram-sha-256", "--pwfile", str(password)),
            *("--encoding", "UTF8", "--no-locale", "--no-instructions", "--no-clean"),
            *(("--set", _SHARED_MEMORY) if binaries.major >= 16 else ()),
            *(() if self._durable else ("--no-sync",)),
        ]
        initdb = self._guarded(command, lock, subprocess.PIPE)
        try:
            assert initdb.stdout is not None
            said = initdb.stdout.read().decode(errors="replace")
            failed = initdb.wait() != 0
        finally:
            _end(initdb)
        if failed:
            reason = self._reason(said)
            shutil.rmtree(partial, ignore_errors=True)
            raise PostgresError(f"cannot make a database in {self.folder}: {reason}; {_ELSEWHERE}")
        partial.rename(self._data)
        _sync(self.folder)

    def _serve(self, binaries: Binaries, lock: int) -> None:
        """Start the server, on another port if a free one was taken by somebody meanwhile."""
        for _ in range(1 if self._port else PORT_TRIES):
            port = self._port or self._expected_port or _free_port()
            self._expected_port = 0
            (self._data / "postmaster.pid").unlink(missing_ok=True)  # stale: the lock is ours
            with suppress(FileNotFoundError):
                self._log.rename(self.folder / "log.1")
            with open(self._log, "xb", opener=_private) as log:
                server = self._guarded(self._command(binaries, port), lock, log.fileno())
            try:
                if self._wait_ready(server):
                    self._guard, self._port = server, port
                    return
            finally:
                if self._guard is not server:
                    _end(server)
            said = self._log.read_text(errors="replace")
            if "Address already in use" not in said:
                raise PostgresError(
                    f"Postgres does not start: {self._reason(said)}; see {self._log}"
                )
        raise PostgresError(f"port {port} is in use: choose another one")

    def _command(self, binaries: Binaries, port: int) -> list[str]:
        return [
            *(str(binaries.folder / "postgres"), "-D", str(self._data)),
            *("-c", "listen_addresses=127.0.0.1", "-c", f"port={port}"),
            *("-c", "unix_socket_directories="),  # a socket's path has to be short
            *("-c", _SHARED_MEMORY),
            *(() if self._durable else _NOT_DURABLE),
        ]

    def _guarded(self, command: list[str], lock: int, output: int) -> subprocess.Popen[bytes]:
        user = None if self._owner is None else (self._owner.uid, self._owner.gid)
        remove = None if self._remove is None else str(self._remove)
        # Nothing of our environment may change what Postgres does.
        settings = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        return subprocess.Popen(  # noqa: S603 - our own guard around our own command
            guard.command_line(
                ["/usr/bin/env", "-i", *settings, *command], owner=user, remove=remove
            ),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            pass_fds=(lock,),
            start_new_session=True,
        )

    def _wait_ready(self, server: subprocess.Popen[bytes]) -> bool:
        """Wait until the server accepts connections; False: it has ended."""
        deadline = time.monotonic() + START_S
        while server.poll() is None:
            if self._status()[7:] == ["ready"]:
                return True
            if time.monotonic() > deadline:
                raise PostgresError(f"Postgres is not ready after {START_S:.0f} s: see {self._log}")
            time.sleep(0.005)
        return False

    def _status(self) -> list[str]:
        """The lines of postmaster.pid: the process id first, the state last."""
        try:
            return [
                line.strip() for line in (self._data / "postmaster.pid").read_text().split("\n")
            ][:8]
        except FileNotFoundError:
            return []

    def _pid(self) -> str:
        return (self._status() or ["unknown"])[0]

    def _reason(self, output: str) -> str:
        """Why Postgres ended, by what it wrote or could not write."""
        if shutil.disk_usage(self.folder).free < 1 << 20:
            return "the disk is full"
        owner = os.geteuid() if self._owner is None else self._owner.uid
        if self._data.exists() and self._data.stat().st_uid != owner:
            return f"{self._data} is not its own: copy folders with owners and rights, by cp -a"
        return _complaint(output)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a guard stop its command, and wait for it."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    if process.stdout is not None:
        process.stdout.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync(folder: Path) -> None:
    """Make a rename in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _barrier(folder: Path) -> Path:
    """The first folder on the way that other users cannot pass."""
    way = [*reversed(folder.parents), folder]
    return next((part for part in way if not part.stat().st_mode & 0o001), folder)


def _complaint(output: str) -> str:
    """The first line in which Postgres or the guard says what is wrong, without its label."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    wrong = [line for line in lines if "FATAL:" in line or "PANIC:" in line or "error:" in line]
    line = (wrong or lines[-1:] or ["it gave no reason"])[0]
    for label in ("FATAL:", "PANIC:", "error:"):
        line = line.split(label)[-1].strip()
    return line
