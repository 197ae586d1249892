"""A folder of converted models, each complete or not there at all."""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gpu_worker.engine.errors import ModelError

MARKER = "complete.json"

Progress = Callable[[str, float | None], None]
"""Told what is being done, and which part of it is done (None where nobody knows)."""


class _File(msgspec.Struct, frozen=True):
    size: int
    sha256: str


def user_cache() -> Path:
    """Return where this user's converted models lie."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fastrun" / "models"


class ModelCache:
    """Entries are folders that appear by one rename, with a marker that names every byte in them.

    Processes that want the same entry at once build it once: the others wait at a file lock, which
    the operating system drops if the builder dies.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def entry(
        self, model: str, version: str, build: Callable[[Path], None], progress: Progress
    ) -> Path:
        """Return the folder of an entry, built if it is missing, half-written or damaged.

        Args:
            model: what is converted; safe in a file name.
            version: of the conversion; likewise. A new one replaces all others of the model.
            build: writes the entry's files into the empty folder it is given.
            progress: told if another process is at it.

        Raises:
            ModelError: the cache folder cannot be written.
        """
        key = f"{model}-{version}"
        folder = self._root / key
        if is_complete(folder):
            return folder
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with self._lock(key, progress):
                if not is_complete(folder):
                    self._build(folder, build)
                    self._remove_others(model, folder)
        except OSError as error:
            raise ModelError(
                f"the cache folder {self._root} cannot be written ({error.strerror}): make room "
                "and allow it, or set XDG_CACHE_HOME to another folder"
            ) from error
        return folder

    def _build(self, folder: Path, build: Callable[[Path], None]) -> None:
        # We hold the lock: what others left in building is dead.
        for leftover in self._root.glob(f"{folder.name}.building-*"):
            shutil.rmtree(leftover)
        building = Path(tempfile.mkdtemp(prefix=f"{folder.name}.building-", dir=self._root))
        try:
            build(building)
            files = {
                path.name: _File(path.stat().st_size, file_sha256(path))
                for path in sorted(building.iterdir())
            }
            (building / MARKER).write_bytes(msgspec.json.encode(files))
            if folder.exists():
                shutil.rmtree(folder)
            building.rename(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def _remove_others(self, model: str, folder: Path) -> None:
        # Whoever has loaded one keeps its files; whoever finds one half gone converts it again.
        for other in self._root.glob(f"{model}-*"):
            building = ".building-" in other.name
            if other != folder and not building and (other / MARKER).is_file():
                shutil.rmtree(other, ignore_errors=True)

    @contextmanager
    def _lock(self, key: str, progress: Progress) -> Iterator[None]:
        # The file stays: removing it would let two processes lock two files of one name.
        with (self._root / f"{key}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress("waiting for another process that converts this model", None)
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def is_complete(folder: Path) -> bool:
    """Whether the folder holds what its marker says, to the byte."""
    try:
        marker = (folder / MARKER).read_bytes()
        files = msgspec.json.decode(marker, type=dict[str, _File])
        # Sizes first: they are nearly free.
        return all(
            (folder / name).stat().st_size == file.size for name, file in files.items()
        ) and all(file_sha256(folder / name) == file.sha256 for name, file in files.items())
    except (OSError, msgspec.DecodeError):
        return False


def file_sha256(path: Path, progress: Callable[[float], None] = lambda _: None) -> str:
    """Hash a file, telling which part is done."""
    digest = hashlib.sha256()
    size = path.stat().st_size
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
            done += len(chunk)
            progress(done / size)
    return digest.hexdigest()
