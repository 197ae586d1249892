"""Model files: what a model is called, where it lies, and what about it is set by hand."""

import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.families import FAMILIES, find
from gpu_worker.dialect.profile import Profile
from gpu_worker.dialect.thinking import ThoughtMarkers

SUFFIX = ".toml"

Effort = Literal["off", "low", "medium", "high"]


class ModelFileError(Exception):
    """A model file that cannot be used; the message names the key or value."""


class Dialect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table ``[dialect]``: what is absent is found from the model's own files."""

    # How calls are written, and all else that is not said below: one of the names in families.py.
    family: str = ""
    # A file with a Jinja template, relative to the model file.
    chat_template: str = ""
    # What stands around a thought; an empty list for a model that does not think.
    thoughts: list[str] | None = None
    # Further tokens that end a turn.
    stop_tokens: list[str] = []
    # Variables of the template for each effort of reasoning.
    efforts: dict[Effort, dict[str, Any]] = {}

    def profile(self, template: ChatTemplate) -> Profile:
        """Return the profile of a template, with what is set here in place of what was found."""
        found = find(template, self.family or None)
        thoughts = found.thoughts
        if self.thoughts is not None:
            thoughts = None
            if self.thoughts:
                begin, end = self.thoughts
                thoughts = ThoughtMarkers(begin, end)
        return msgspec.structs.replace(
            found,
            thoughts=thoughts,
            stop_tokens=(*found.stop_tokens, *self.stop_tokens),
            efforts=self.efforts,
        )


class ModelFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a model file says."""

    id: str
    # A GGUF file or a folder, relative to the model file.
    path: str
    dialect: Dialect = Dialect()


def read(path: Path) -> ModelFile:
    """Read a model file; the paths in it are made absolute.

    Raises:
        ModelFileError: with the key or value that is wrong.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        made = msgspec.convert(values, ModelFile)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelFileError(f"{path} is not TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise ModelFileError(f"{path}: {error}") from error
    if not (made.id and made.path):
        raise ModelFileError(f"{path}: id and path must not be empty")
    dialect = made.dialect
    if dialect.family and dialect.family not in FAMILIES:
        raise ModelFileError(f"{path}: dialect.family must be one of {', '.join(FAMILIES)}")
    if dialect.thoughts and (len(dialect.thoughts) != 2 or not all(dialect.thoughts)):
        raise ModelFileError(f"{path}: dialect.thoughts takes two texts, or none")
    template = dialect.chat_template
    return msgspec.structs.replace(
        made,
        path=_beside(path, made.path),
        dialect=msgspec.structs.replace(
            dialect, chat_template=_beside(path, template) if template else ""
        ),
    )


def template_source(dialect: Dialect) -> str | None:
    """Return the text of the template that is set by hand; None if none is.

    Raises:
        ModelFileError: the file cannot be read.
    """
    if not dialect.chat_template:
        return None
    try:
        return Path(dialect.chat_template).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{dialect.chat_template} cannot be read: {error}") from error


def _beside(file: Path, path: str) -> str:
    try:
        return str((file.parent / Path(path).expanduser()).absolute())
    except RuntimeError as error:
        raise ModelFileError(f"{file}: {path} begins with no user's home folder") from error
