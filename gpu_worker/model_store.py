"""The folder of models: which model files there are, and whose weights lie there.

A model of a hub has a folder of its own there, named after its id. It counts as here when the
record in it, which is written last, says so and every file has its size.
"""

import os
import re
import shutil
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from gpu_worker.model_file import SUFFIX, ModelFile, ModelFileError, read

READY = Path(__file__).parent / "models"
RECORD = "pulled.json"
_UNSAFE = re.compile(r"[^\w.-]+")


class PulledFile(msgspec.Struct, frozen=True):
    """A file as it has to be."""

    size: int
    # Of its content; empty if the source does not say.
    sha256: str = ""


class Pulled(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in a model's folder, and where it is from."""

    source: str
    # The commit, of a hub's.
    revision: str = ""
    files: dict[str, PulledFile]
    complete: bool = False

    @property
    def size(self) -> int:
        """All files, in bytes."""
        return sum(file.size for file in self.files.values())


class Presence(StrEnum):
    """Whether a model's weights lie here."""

    HERE = "yes"
    IN_PART = "in part"
    ABSENT = "no"


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A model file that was found."""

    path: Path | None  # None: it stands for the default model, which has none
    file: ModelFile
    ready_made: bool = False


class ModelStore:
    """Model files and weights below one folder, and the model files that come with fastrun."""

    def __init__(self, root: Path, *, ready: Path = READY) -> None:
        self.root = root
        self._ready = ready

    def scan(self) -> tuple[list[Known], list[str]]:
        """Return all models, each once, and what is wrong with files that cannot be read.

        A file in the folder stands in place of one of the same id that comes with fastrun.
        """
        known: dict[str, Known] = {}
        problems: list[str] = []
        for folder in (self.root, self._ready):
            for path in sorted(folder.glob(f"*{SUFFIX}")):
                try:
                    file = read(path)
                except ModelFileError as error:
                    problems.append(str(error))
                    continue
                made = Known(path=path, file=file, ready_made=folder == self._ready)
                known.setdefault(file.id, made)
        return list(known.values()), problems

    def find(self, model: str) -> Known | None:
        """Return the model file of an id; None if no file that can be read has it.

        Raises:
            ModelFileError: there is none, and the one that would be named so is wrong.
        """
        known, _ = self.scan()
        found = next((each for each in known if each.file.id == model), None)
        if found is None and self.file_path(model).exists():
            read(self.file_path(model))
        return found

    def file_path(self, model: str) -> Path:
        """Where the model file of an id is written."""
        return self.root / f"{slug(model)}{SUFFIX}"

    def folder(self, file: ModelFile) -> Path:
        """Where the files of a hub's model are written."""
        return self.root / slug(file.id)

    def weights(self, file: ModelFile) -> Path:
        """Where a model lies: a GGUF file or a folder."""
        return Path(file.path) if file.path else self.folder(file) / file.file

    def pulled(self, file: ModelFile) -> Pulled | None:
        """What was pulled, whole or in part."""
        try:
            return msgspec.json.decode((self.folder(file) / RECORD).read_bytes(), type=Pulled)
        except (OSError, msgspec.DecodeError):
            return None

    def presence(self, file: ModelFile) -> Presence:
        """Whether its weights lie here."""
        folder = self.folder(file)
        if file.path and not Path(file.path).is_relative_to(folder):
            return Presence.HERE if Path(file.path).exists() else Presence.ABSENT
        record = self.pulled(file)
        if record is None:
            return Presence.ABSENT
        whole = record.complete and all(
            _size(folder / name) == each.size for name, each in record.files.items()
        )
        return Presence.HERE if whole else Presence.IN_PART

    def record(self, file: ModelFile, pulled: Pulled) -> None:
        """Write down what lies in a model's folder, whole or not at all."""
        folder = self.folder(file)
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{RECORD}.part"
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(pulled)))
        partial.replace(folder / RECORD)

    def write(self, model: str, text: str) -> Path:
        """Write a model file, and read it as a check.

        Raises:
            ModelFileError: it is wrong, and not written.
        """
        path = self.file_path(model)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.part")
        partial.write_text(text, encoding="utf-8")
        try:
            read(partial)
        except ModelFileError:
            partial.unlink()
            raise
        partial.replace(path)
        return path

    def remove(self, known: Known) -> list[Path]:
        """Remove what this folder has of a model, and nothing elsewhere; return what it was."""
        removed = []
        if (folder := self.folder(known.file)).is_dir():
            shutil.rmtree(folder)
            removed.append(folder)
        if known.path is not None and not known.ready_made:
            known.path.unlink()
            removed.append(known.path)
        return removed


def slug(model: str) -> str:
    """Return an id as the name of a file: such as ``google--gemma-4-31b-it``."""
    return _UNSAFE.sub("-", model.replace("/", "--")).lstrip(".") or "-"


def default_folder(environ: Mapping[str, str]) -> Path:
    """Where models lie unless a setting says otherwise: in the user's cache."""
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "fastrun" / "weights"


def store_of(setting: str) -> ModelStore:
    """Return the models of the folder that a setting names; empty means this user's."""
    return ModelStore(Path(setting).expanduser() if setting else default_folder(os.environ))


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
