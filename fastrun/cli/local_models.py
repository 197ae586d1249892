"""The models of this machine: what is known of them, and what brings and removes their files."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from fastrun.cli import pulling
from fastrun.cli.errors import CommandError
from fastrun.cli.pulling import Found
from fastrun.cli.sources import FolderSource, Source
from fastrun.service import config
from gpu_worker import gpus
from gpu_worker.checkpoint import Checkpoint
from gpu_worker.config import Config
from gpu_worker.engine.cpu.model_source import DEFAULT_NAME, default_source
from gpu_worker.engine.errors import ModelError
from gpu_worker.model_file import (
    HUB_ID,
    QUANTIZATIONS,
    EngineTable,
    ModelFile,
    ModelFileError,
    read,
)
from gpu_worker.model_fit import Target, cached_tokens
from gpu_worker.model_store import Known, ModelStore, Presence, slug, store_of

Engine = Literal["cpu", "tensorrt-llm"]
# What is a path of this machine, and not an id of a hub.
_PATHS = ("/", "./", "../", "~")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is to be added or pulled, as somebody has typed it."""

    source: str  # a path, or owner/name
    name: str = ""  # what it is to be called; empty: its id
    revision: str = ""
    file: str = ""
    engine: EngineTable = EngineTable()


def wanted(
    source: str, *, name: str, revision: str, file: str, settings: Mapping[str, int | None]
) -> Wanted:
    """Return what somebody has typed."""
    table = msgspec.convert(settings, EngineTable)
    return Wanted(source=source, name=name, revision=revision, file=file, engine=table)


def wanted_again(store: ModelStore, item: Known, typed: Wanted) -> Wanted:
    """Return what a model's file says of where it is from.

    Args:
        store: where it is known.
        item: the model file.
        typed: what was typed beside its id; a path, of which only a part was brought here.

    Raises:
        CommandError: nothing of it can be pulled, or other than the file says.
    """
    file = item.file
    if file.hub:
        if typed.revision or typed.file:
            raise CommandError(f"{item.path} says which revision and file: change it there")
        engine = typed.engine.settings() or file.engine.settings()
        table = msgspec.structs.replace(file.engine, **engine)
        return Wanted(source=file.hub, revision=file.revision, file=file.file, engine=table)
    if typed.source == file.id or not Path(file.path).is_relative_to(store.folder(file)):
        raise CommandError(f"{item.path} says that its weights lie at {file.path}")
    return msgspec.structs.replace(typed, name=file.id, engine=file.engine)


def models(folder: Path | None) -> ModelStore:
    """The models of a folder; None means that of the worker's settings, or else this user's.

    Raises:
        CommandError: the settings cannot be read.
    """
    try:
        return store_of(str(folder or config.load_one(Config, "worker", "models", os.environ)))
    except config.ConfigError as error:
        raise CommandError(str(error)) from error


def target(engine: Engine | None, memory_gib: float | None, table: EngineTable) -> Target:
    """What a model is to run on: as told, or as this machine looks."""
    seen = [gpu.memory_bytes for gpu in gpus.find()]
    _, told = config.explicit("worker", "engine", os.environ) or ("", None)
    told = engine or told
    return Target(
        engine=cast("Engine", told if told in ("cpu", "tensorrt-llm") else _usual(seen)),
        tensor_parallel=table.tensor_parallel or 1,
        pipeline_parallel=table.pipeline_parallel or 1,
        gpu_memory=int(memory_gib * pulling.GIB) if memory_gib else min(seen, default=None),
        quantization=table.quantization or "",
    )


def _usual(seen: list[int]) -> Engine:
    return "tensorrt-llm" if seen else "cpu"


def known(store: ModelStore, model: str) -> Known | None:
    """The model file of an id; the default model is known without one.

    Raises:
        CommandError: it is wrong.
    """
    try:
        found = store.find(model)
    except ModelFileError as error:
        raise CommandError(str(error)) from error
    return _default() if found is None and model == DEFAULT_NAME else found


def source_of(wanted: Wanted) -> Source:
    """The place that somebody has named.

    Raises:
        CommandError: nothing is there, or it is no place.
    """
    if wanted.source.startswith(_PATHS) or wanted.source.endswith(".gguf"):
        return FolderSource(Path(wanted.source).expanduser().absolute())
    if not HUB_ID.fullmatch(wanted.source):
        raise CommandError(
            f"{wanted.source!r} is neither an id that fastrun model list --all shows, nor a "
            "hub's owner/name, nor a path that begins with / or ./"
        )
    # It takes a second to import, which only those pay who ask a hub.
    from fastrun.cli.hub import HubSource  # noqa: PLC0415 - see above

    return HubSource(wanted.source, wanted.revision or "main")


def add(
    store: ModelStore, wanted: Wanted, source: Source, found: Found, *, copied: bool = False
) -> ModelFile:
    """Write a model file for what was found, and return what it says.

    Args:
        store: where.
        wanted: what was typed.
        source: where it is.
        found: what it is.
        copied: whether a path's files are brought here.

    Raises:
        CommandError: its name is taken, or it would not be a model file.
    """
    name = wanted.name or wanted.source
    if _is_path(source) and not wanted.name:
        raise CommandError("a path says no name: pass one with --as")
    if store.file_path(name).exists():
        raise CommandError(f"{store.file_path(name)} is there already: change it, or remove it")
    try:
        return read(store.write(name, text_of(name, wanted, source, found, copied=copied)))
    except ModelFileError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"{store.root} cannot be written: {error.strerror}") from error


def text_of(name: str, wanted: Wanted, source: Source, found: Found, *, copied: bool) -> str:
    """Return a model file's text; pure."""
    weights = found.choice.weights[0] if found.choice.format == "GGUF" else ""
    lines = [f"id = {_quoted(name)}"]
    if _is_path(source):
        path = f"{slug(name)}/{weights}".rstrip("/") if copied else source.name
        lines.append(f"path = {_quoted(path)}")
    else:
        asked = wanted.revision or "main"
        lines += [f"hub = {_quoted(source.name)}", f"revision = {_quoted(source.revision)}"]
        if asked != source.revision:
            lines[-1] += f"  # what {asked} was"
        if weights:
            lines.append(f"file = {_quoted(weights)}")
    given: dict[str, object] = {**wanted.engine.settings()}
    if found.model.quantization in QUANTIZATIONS:
        given["quantization"] = found.model.quantization
    if given:
        lines += ["", "[engine]", *(f"{key} = {_value(value)}" for key, value in given.items())]
    return "\n".join(lines) + "\n"


def facts(store: ModelStore, item: Known, on: Target) -> dict[str, Any]:
    """Return what is known of a model, for people and programs; None for what is not."""
    file, record = item.file, store.pulled(item.file)
    model = _local(store, file, on)
    given = file.engine.settings()
    fraction = float(given.get("kv_cache_fraction", Config().kv_cache_fraction))
    return {
        "model": file.id,
        "file": str(item.path) if item.path else None,
        "hub": file.hub or None,
        "revision": (record.revision if record else "") or (file.revision if file.hub else None),
        "weights": str(store.weights(file)) if file.path or file.hub else None,
        "here": str(store.presence(file)),
        "format": str(model.format) if model else None,
        "architecture": (model.architecture if model else "") or None,
        "quantization": (model.quantization if model else "") or file.facts.quantization or None,
        "weight_bytes": model.weight_bytes if model else None,
        "context_length": model.context_length if model else None,
        "family": file.dialect.family or None,
        "settings": given,
        "cached_tokens": cached_tokens(model, on, fraction=fraction) if model else None,
    }


def lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return facts for people: those that are known."""
    shown = dict(facts)
    if shown["weight_bytes"] is not None:
        shown["weight_bytes"] = pulling.amount(shown["weight_bytes"])
    shown["settings"] = ", ".join(f"{name} = {value}" for name, value in facts["settings"].items())
    names = {"weight_bytes": "size of weights", "cached_tokens": "tokens that the cache holds"}
    return [
        (names.get(key, key.replace("_", " ")), str(value))
        for key, value in shown.items()
        if value not in (None, "")
    ]


def _local(store: ModelStore, file: ModelFile, on: Target) -> Checkpoint | None:
    if store.presence(file) is not Presence.HERE:
        return None
    path = store.weights(file)
    return pulling.look(FolderSource(path), on).model


def rows(
    store: ModelStore, served: Mapping[str, Mapping[str, Any]], *, every: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return all models with where they are, and what is wrong with files.

    Args:
        store: of this machine.
        served: what a deployment says of each that it knows.
        every: also those that come along and are not here.
    """
    found, problems = store.scan()
    rows: dict[str, dict[str, Any]] = {model: {**each} for model, each in served.items()}
    comes_along = {item.file.id for item in found if item.ready_made} | {DEFAULT_NAME}
    lying = {DEFAULT_NAME: store.presence(_default().file)}
    lying |= {item.file.id: store.presence(item.file) for item in found}
    for model, here in lying.items():
        if not every and model in comes_along and here is Presence.ABSENT and model not in rows:
            continue
        rows.setdefault(model, {"model": model, "ready": None, "context_length": None})
        rows[model]["here"] = str(here)
    return [{"here": None, **row} for row in rows.values()], problems


def _default() -> Known:
    """The default model, whose weights are a Python package, as if a model file named them."""
    try:
        path = str(default_source().path)
    except ModelError:
        path = ""
    return Known(path=None, file=ModelFile(id=DEFAULT_NAME, path=path), ready_made=True)


def _is_path(source: Source) -> bool:
    return isinstance(source, FolderSource)


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()  # JSON's strings are TOML's


def _value(value: object) -> str:
    return _quoted(value) if isinstance(value, str) else str(value).lower()
