"""The folder of a worker that has joined: its key, its certificates, and where its head is."""

import fcntl
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fastrun.cli.errors import CommandError
from fastrun.local import lock_file
from fastrun.local.folder import default_path
from fastrun.service import config, private_file
from fastrun.service.authority import fingerprint, identity_of

_FILE = "worker.json"
_PENDING = "joining.pem"
_LOCK = "lock"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker was told when it joined, and what its operator chose."""

    head: str
    """host:port where it has joined."""
    token_sha256: str
    """Of the token's secret part, in hexadecimal: a used one that is given again is no new one."""
    worker_id: str
    schedulers: list[str]
    """host:port of each; without a host: that of the head."""
    auth: str
    """host:port of the auth service, in the same manner."""
    port: int
    """Where it listens."""
    advertise: str = ""
    """host:port where edges reach it; empty: the address by which it reaches the head."""
    model: str = ""
    """As FASTRUN_WORKER_MODEL; empty: the default."""

    def scheduler_addresses(self) -> list[str]:
        """host:port of each scheduler."""
        return [_whole(address, self.head) for address in self.schedulers]

    def auth_address(self) -> str:
        """host:port of the auth service."""
        return _whole(self.auth, self.head)


@dataclass(frozen=True, slots=True)
class Standing:
    """Whose certificate a folder holds, from when to when, and of which deployment."""

    worker_id: str
    expires_at: datetime
    ca_sha256: str
    """Fingerprint of the CA that has issued it."""


class WorkerFolder:
    """One worker's folder; nobody but its owner can read it.

    Args:
        path: the folder, made when it is first written to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def take(self) -> None:
        """Take it for as long as this process lives, also as another program after exec.

        Raises:
            CommandError: another process has it, others may write to it, or it cannot be made.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.path.stat().st_mode & _OTHERS_WRITE:
                raise CommandError(
                    f"others may write to {self.path}: run chmod go-w on it, or choose another "
                    "folder with --data"
                )
            descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            os.set_inheritable(descriptor, True)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(
                f"the worker of {self.path} runs: stop it first, or choose another folder "
                "with --data"
            ) from None
        except OSError as error:
            raise CommandError(
                f"cannot keep a worker in {self.path}: {error.strerror}; choose another folder "
                "with --data"
            ) from error

    def is_taken(self) -> bool:
        """Whether a process has it: a worker that runs, or one that is joining."""
        return lock_file.holder(self.path / _LOCK) is not None

    def joined(self) -> Joined | None:
        """What was told when it joined; None: it has not.

        Raises:
            CommandError: the file is damaged.
        """
        try:
            return msgspec.json.decode((self.path / _FILE).read_bytes(), type=Joined)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise CommandError(f"cannot read {self.path / _FILE}: {error}") from error

    def standing(self) -> Standing | None:
        """What its certificate says; None: there is no whole set of files."""
        try:
            cert = x509.load_pem_x509_certificate((self.path / "cert.pem").read_bytes())
            key = load_pem_private_key((self.path / "key.pem").read_bytes(), password=None)
            trusted = x509.load_pem_x509_certificates((self.path / "ca.pem").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        who = identity_of(cert)
        issuer = next((each for each in trusted if cert.issuer == each.subject), None)
        if who is None or issuer is None or key.public_key() != cert.public_key():
            return None
        return Standing(who.name, cert.not_valid_after_utc, fingerprint(issuer))

    def pending_key(self, make: Callable[[], bytes]) -> bytes:
        """The key for which a certificate is asked: the same until there is one.

        Whoever asks again with it gets the answer that was lost, also after the token was used.
        """
        path = self.path / _PENDING
        if not path.exists():
            private_file.write(path, make())
        return path.read_bytes()

    def keep(self, joined: Joined, *, cert: str, ca: str) -> None:
        """Keep what was told at the join; the pending key becomes the worker's."""
        private_file.write(self.path / "key.pem", (self.path / _PENDING).read_bytes())
        private_file.write(self.path / "cert.pem", cert.encode())
        private_file.write(self.path / "ca.pem", ca.encode())
        self.note(joined)
        (self.path / _PENDING).unlink()

    def renewed(self, *, cert: str, ca: str) -> None:
        """Keep a new certificate for the same key (empty: the old one stays), and whom to trust."""
        private_file.write(self.path / "ca.pem", ca.encode())
        if cert:
            private_file.write(self.path / "cert.pem", cert.encode())

    def note(self, joined: Joined) -> None:
        """Keep what its operator has chosen."""
        private_file.write(self.path / _FILE, msgspec.json.format(msgspec.json.encode(joined)))


def environment(folder: Path, joined: Joined, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the worker itself; what its operator has set stands.

    Args:
        folder: its own.
        joined: what it was told.
        environ: ours.
    """
    listen = "[::]" if joined.head.startswith("[") else "0.0.0.0"  # noqa: S104 - edges come from elsewhere
    ours = {
        "tls_cert": str(folder / "cert.pem"),
        "tls_key": str(folder / "key.pem"),
        "tls_ca": str(folder / "ca.pem"),
        "renew_address": joined.auth_address(),
        "scheduler_addresses": ",".join(joined.scheduler_addresses()),
        "worker_id": joined.worker_id,
        "listen": f"{listen}:{joined.port}",
        "advertise_address": joined.advertise,
        "model": joined.model,
    }
    return {
        **environ,
        **{
            f"FASTRUN_WORKER_{name.upper()}": value
            for name, value in ours.items()
            if value and config.explicit("worker", name, environ) is None
        },
    }


def default_folder(environ: Mapping[str, str]) -> Path:
    """Where this user's worker is kept unless told otherwise."""
    return default_path(
        {name: environ[name] for name in environ if name != "FASTRUN_DATA"}
    ).with_name("fastrun-worker")


def _whole(address: str, head: str) -> str:
    return head.rpartition(":")[0] + address if address.startswith(":") else address
