"""Where a model can be had: what every such place answers, and a folder as the simplest of them."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from fastrun.cli.errors import CommandError
from gpu_worker.engine.cpu.gguf import read_gguf
from gpu_worker.engine.errors import ModelError


class SourceFile(msgspec.Struct, frozen=True):
    """One file of a model."""

    size: int  # bytes
    sha256: str = ""  # of its content; empty if the source does not say
    git_sha1: str = ""  # likewise, as git names a blob


class Source(Protocol):
    """A place that holds a model; every method raises CommandError."""

    @property
    def name(self) -> str:
        """The place, for people."""

    @property
    def revision(self) -> str:
        """The commit; empty where there is none."""

    @property
    def files(self) -> Mapping[str, SourceFile]:
        """All that is there, by names with slashes."""

    def read(self, name: str) -> bytes:
        """Return the content of a small file."""

    def gguf_architecture(self, name: str) -> str:
        """Return what a GGUF file says it is; empty if nobody knows."""

    def fetch(self, name: str, part: Path) -> None:
        """Append to a file what it lacks of the content; it may not exist yet."""


class FolderSource:
    """A folder, or one GGUF file."""

    def __init__(self, path: Path) -> None:
        """Look at what is there.

        Raises:
            CommandError: nothing is.
        """
        self._folder = path if path.is_dir() else path.parent
        self.name = str(path)
        self.revision = ""
        if path.is_file():
            self.files = {path.name: SourceFile(path.stat().st_size)}
        elif path.is_dir():
            found = (each for each in path.iterdir() if each.is_file())
            self.files = {each.name: SourceFile(each.stat().st_size) for each in sorted(found)}
        else:
            raise CommandError(f"there is nothing at {path}")

    def read(self, name: str) -> bytes:
        """See Source."""
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise CommandError(f"{self._folder / name} cannot be read: {error.strerror}") from error

    def gguf_architecture(self, name: str) -> str:
        """See Source."""
        try:
            return str(read_gguf(self._folder / name).metadata.get("general.architecture", ""))
        except ModelError as error:
            raise CommandError(str(error)) from error

    def fetch(self, name: str, part: Path) -> None:
        """See Source."""
        try:
            with (self._folder / name).open("rb") as source, part.open("ab") as target:
                source.seek(target.tell())
                shutil.copyfileobj(source, target, 1 << 22)
        except OSError as error:
            raise CommandError(f"{name} cannot be copied to {part}: {error.strerror}") from error
