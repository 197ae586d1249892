"""The data folder of one stack: who uses it, where that stack is reached, and its secrets."""

import fcntl
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fastrun.local import lock_file
from fastrun.local.errors import LocalError
from fastrun.local.temporary_folder import TemporaryFolder
from fastrun.service import private_file

FREE_BYTES = 100 << 20  # what a new database and its log need, rounded up
_LOCK = "lock"
_STATE = "state.json"
_KEPT = ("postgres", "logs", "spool", "certs", "api-key", "pepper", _STATE)
_ELSEWHERE = "choose another folder with --data"


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A stack that runs: whom to signal and where it is reached."""

    pid: int
    base_url: str
    """What an OpenAI client takes, ending in /v1."""
    model: str
    auth_address: str
    """host:port of the auth service's gRPC server."""
    scheduler_address: str
    """host:port of the first scheduler's gRPC server."""
    scheduler_addresses: list[str] = []
    """Of all schedulers; empty: that one alone, as an older fastrun wrote it."""

    @property
    def schedulers(self) -> str:
        """All of them, separated by commas."""
        return ",".join(self.scheduler_addresses) or self.scheduler_address


class DataFolder:
    """What a stack keeps between runs, and the lock that only one stack can hold."""

    def __init__(self, path: Path, *, temporary: TemporaryFolder | None = None) -> None:
        self.path = path
        self._temporary = temporary
        self._descriptor: int | None = None

    @classmethod
    def temporary(cls) -> "DataFolder":
        """Make a folder for one run; whoever stops the run removes it.

        Raises:
            LocalError: there is no room for it.
        """
        made = TemporaryFolder()
        return cls(made.path, temporary=made)

    @property
    def ephemeral(self) -> bool:
        """Whether nothing is kept."""
        return self._temporary is not None

    @property
    def postgres(self) -> Path:
        """Where the embedded Postgres keeps everything."""
        return self.path / "postgres"

    @property
    def logs(self) -> Path:
        """Where the services' logs go, one file each."""
        return self.path / "logs"

    @property
    def spool(self) -> Path:
        """Where edges keep what requests used until it is in the database."""
        return self.path / "spool"

    @property
    def certs(self) -> Path:
        """The certificates of the stack, and its CA: see fastrun.local.certificates."""
        return self.path / "certs"

    @property
    def api_key(self) -> Path:
        """The development key, readable by its owner only."""
        return self.path / "api-key"

    def acquire(self, *, reset: bool = False) -> None:
        """Make the folder and take its lock, which ends with this process at the latest.

        Args:
            reset: forget what earlier runs have kept.

        Raises:
            LocalError: another stack uses it, or nothing can be kept there.
        """
        try:
            self._make()
            descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise LocalError(self._in_use()) from None
            self._descriptor = descriptor
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            if reset:
                self._forget()
            (self.path / _STATE).unlink(missing_ok=True)
            self.logs.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise LocalError(
                f"cannot keep data in {self.path}: {error.strerror}; {_ELSEWHERE}"
            ) from error
        self._check_room()

    def release(self) -> None:
        """Let another stack use the folder; an ephemeral one is removed. Idempotent."""
        if self._temporary is not None:
            self._temporary.close()
        if self._descriptor is not None:
            self.withdraw()
            os.close(self._descriptor)
            self._descriptor = None

    def pepper(self) -> Path:
        """The file that holds the pepper of stored keys, 32 bytes in hexadecimal."""
        path = self.path / "pepper"
        if not path.exists():
            self._write("pepper", secrets.token_hex(32))
        return path

    def publish(self, state: State) -> None:
        """Let `fastrun` commands find the stack that runs here."""
        self._write(_STATE, msgspec.json.encode(state).decode())

    def withdraw(self) -> None:
        """Let nobody find the stack any more. Idempotent."""
        (self.path / _STATE).unlink(missing_ok=True)

    def state(self) -> State | None:
        """The stack that runs here and is ready; None where there is none."""
        if self.holder() is None:
            return None
        try:
            return msgspec.json.decode((self.path / _STATE).read_bytes(), type=State)
        except (OSError, msgspec.MsgspecError):
            return None

    def holder(self) -> int | None:
        """The process id of whoever has taken this folder; None: nobody has."""
        return lock_file.holder(self.path / _LOCK)

    def _make(self) -> None:
        # As root, Postgres runs as another user, who has to pass through.
        mode = 0o711 if os.geteuid() == 0 else 0o700
        if not self.path.exists():
            self.path.mkdir(parents=True)
            self.path.chmod(mode)
        if self.ephemeral:
            self.path.chmod(mode)
        names = {path.name for path in self.path.iterdir() if path.name[0] != "."} - {"lost+found"}
        if names and _LOCK not in names:
            raise LocalError(f"{self.path} holds other files: {_ELSEWHERE}")

    def _in_use(self) -> str:
        state = self.state()
        if state is not None:
            return (
                f"already running at {state.base_url}, pid {state.pid}: stop it with fastrun down, "
                "or start another one beside it with --data DIR --port 0"
            )
        return f"already starting or stopping in {self.path}, pid {self.holder()}: wait for it"

    def _forget(self) -> None:
        for name in _KEPT:
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _check_room(self) -> None:
        free = shutil.disk_usage(self.path).free
        if free < FREE_BYTES and not self.postgres.exists():
            raise LocalError(
                f"the disk of {self.path} has {free >> 20} MB left and a database needs "
                f"{FREE_BYTES >> 20} MB: make room, or {_ELSEWHERE}"
            )

    def _write(self, name: str, text: str) -> None:
        try:
            private_file.write(self.path / name, text.encode())
        except OSError as error:
            raise LocalError(f"cannot write {self.path / name}: {error.strerror}") from error


def default_path(environ: Mapping[str, str]) -> Path:
    """Where this user's stack keeps its data unless told otherwise.

    FASTRUN_DATA goes first: inside `fastrun up --exec` it names the stack around the command.
    """
    if chosen := environ.get("FASTRUN_DATA"):
        return Path(chosen).absolute()
    data = Path(environ.get("XDG_DATA_HOME", ""))
    if not data.is_absolute():
        home = Path.home()
        mac = sys.platform == "darwin"
        data = home / ("Library/Application Support" if mac else ".local/share")
    if os.geteuid() == 0 and not _open_to_others(data):
        # Postgres, which runs as another user in root's stead, could not get there.
        return Path("/var/lib/fastrun")
    return data / "fastrun"


def _open_to_others(path: Path) -> bool:
    """Whether other users can pass all folders on the way that exist."""
    return all(part.stat().st_mode & 0o001 for part in (path, *path.parents) if part.exists())
