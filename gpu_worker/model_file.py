"""Model files: what a model is called, where it lies, how it is run, what of it is set by hand."""

import datetime as dt
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from fastrun.service.config import Positive, wanted
from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.families import FAMILIES, find
from gpu_worker.dialect.profile import Profile
from gpu_worker.dialect.thinking import ThoughtMarkers

SUFFIX = ".toml"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

Effort = Literal["off", "low", "medium", "high"]
# Of weights; the first three stand for weights that are not quantized.
Quantization = Literal["bf16", "fp16", "fp32", "fp8", "nvfp4", "mxfp4", "int8", "int4"]
QUANTIZATIONS: tuple[str, ...] = get_args(Quantization)


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


class EngineTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table ``[engine]``: settings of a worker, of the same names, for whoever sets them nowhere.

    All but the last are explained in config.py.
    """

    slots: Positive | None = None
    precision: Literal["f32", "fast"] | None = None
    kv_cache_mib: Positive | None = None
    tensor_parallel: Positive | None = None
    pipeline_parallel: Positive | None = None
    context_length: Positive | None = None
    tokens_per_step: Positive | None = None
    kv_cache_fraction: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    kv_cache_dtype: Literal["auto", "fp8"] | None = None
    prefix_cache: bool | None = None
    # What the weights have to be: no choice of the engine's, but a check of what lies there.
    quantization: Quantization | None = None

    def settings(self) -> dict[str, Any]:
        """Return the settings that are given, by the names of Config."""
        given = msgspec.structs.asdict(self)
        del given["quantization"]
        return {name: value for name, value in given.items() if value is not None}


class PublicTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table ``[public]``: what GET /v1/models says beside what is found out."""

    # For people.
    name: str = ""
    # Where others find the model at Hugging Face; default: the hub id.
    hugging_face_id: str = ""
    # Default: that of [engine].
    quantization: Quantization | None = None
    # When it was published; default: when its files were written here.
    created: dt.date | None = None

    @property
    def created_s(self) -> int | None:
        """When it was published, in seconds since 1970; None if that is not said."""
        if self.created is None:
            return None
        noon = dt.time(12, tzinfo=dt.UTC)
        return int(dt.datetime.combine(self.created, noon).timestamp())


class PublicFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a model file publishes of its model; empty or None where it says nothing."""

    name: str = ""
    hugging_face_id: str = ""
    quantization: str = ""
    created: int | None = None  # seconds since 1970


class ModelFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a model file says."""

    id: str
    # A GGUF file or a folder, relative to the model file; or
    path: str = ""
    # an id at Hugging Face, `owner/name`, from where `fastrun model pull` gets it.
    hub: str = ""
    # A branch, a tag or a commit there.
    revision: str = "main"
    # The one file of it that is meant, of several that are GGUF.
    file: str = ""
    engine: EngineTable = EngineTable()
    dialect: Dialect = Dialect()
    public: PublicTable = PublicTable()

    @property
    def facts(self) -> PublicFacts:
        """What is published."""
        return PublicFacts(
            name=self.public.name,
            hugging_face_id=self.public.hugging_face_id or self.hub,
            quantization=self.public.quantization or self.engine.quantization or "",
            created=self.public.created_s,
        )


def named_by(argument: str) -> Path | None:
    """Return the model file that an argument names; None if it is NAME=PATH or anything else."""
    if "=" in argument or not argument.endswith(SUFFIX):
        return None
    return Path(argument).expanduser().absolute()


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
        raise ModelFileError(f"{path}: {_plain(error)}") from error
    if problem := _problem(made):
        raise ModelFileError(f"{path}: {problem}")
    template = made.dialect.chat_template
    return msgspec.structs.replace(
        made,
        path=_beside(path, made.path) if made.path else "",
        dialect=msgspec.structs.replace(
            made.dialect, chat_template=_beside(path, template) if template else ""
        ),
    )


def _problem(made: ModelFile) -> str | None:
    if not made.id:
        return "id must not be empty"
    if bool(made.path) == bool(made.hub):
        return "either path or hub says where the model lies"
    if made.hub and not HUB_ID.fullmatch(made.hub):
        return f"hub must be owner/name, not {made.hub!r}"
    if made.path and (made.file or made.revision != "main"):
        return "file and revision belong to hub: path says which file is meant"
    return _problem_of_dialect(made.dialect)


def _problem_of_dialect(dialect: Dialect) -> str | None:
    if dialect.family and dialect.family not in FAMILIES:
        return f"dialect.family must be one of {', '.join(FAMILIES)}"
    if dialect.thoughts and (len(dialect.thoughts) != 2 or not all(dialect.thoughts)):
        return "dialect.thoughts takes two texts, or none"
    return None


def _plain(error: msgspec.ValidationError) -> str:
    """Say in words which key or value is wrong, and what may stand there."""
    text, _, where = str(error).partition(" - at ")
    found = _PATH.search(where)
    path = found[1] if found else ""
    if unknown := _UNKNOWN.search(text):
        known = [field.encode_name for field in msgspec.structs.fields(_TABLES[path])]
        return f"there is no key {_below(path, unknown[1])}: allowed are {', '.join(known)}"
    if missing := _MISSING.search(text):
        return f"{_below(path, missing[1])} is missing"
    table, _, key = path.rpartition(".")
    kind = _TABLES.get(table)
    hint = None if kind is None else get_type_hints(kind, include_extras=True).get(key)
    # What is wrong within a table of free keys msgspec says best.
    if hint is None or get_origin(hint) is dict:
        return f"{path}: {text}" if path else text
    return f"{path} must be {wanted(hint)}"


def _below(table: str, key: str) -> str:
    return f"{table}.{key}" if table else key


_UNKNOWN = re.compile(r"unknown field `(.+)`")
_MISSING = re.compile(r"required field `(.+)`")
# Such as `$.engine.slots`, or `$.dialect.thoughts[...]`, without the brackets.
_PATH = re.compile(r"\$\.([\w.]+)")
_TABLES: Mapping[str, type[msgspec.Struct]] = MappingProxyType(
    {"": ModelFile, "engine": EngineTable, "dialect": Dialect, "public": PublicTable}
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
