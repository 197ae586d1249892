"""Which settings a model file brings, and whether its model is here: before any engine starts."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from gpu_worker.checkpoint import CheckpointError, choose, describe
from gpu_worker.config import Config
from gpu_worker.model_file import ModelFile, ModelFileError, named_by, read
from gpu_worker.model_store import ModelStore, Presence


def with_model(config: Config, store: ModelStore, *, is_set: Callable[[str], bool]) -> Config:
    """Return the settings with those of the model's file, where nobody has set them.

    Args:
        config: as it was read; ``model`` may be an id that the store knows, or a model file.
        store: the model files of this machine.
        is_set: whether somebody has set a setting, by its name.

    Raises:
        ModelFileError: with the file's name and the key or value that is wrong, or with what to do
            when the model's weights are not here.
    """
    path = None if config.engine == "scripted" else _path(config.model, store)
    if path is None:
        return config
    file = read(path)
    _check_presence(path, file, store)
    _check_weights(path, file, store.weights(file))
    given = file.engine.settings()
    values = {name: value for name, value in given.items() if not is_set(name)}
    return msgspec.structs.replace(config, model=str(path), **values)


def _path(model: str, store: ModelStore) -> Path | None:
    if not model or "=" in model:
        return None
    if path := named_by(model):
        return path
    found = store.find(model)
    return found.path if found else None


def _check_presence(path: Path, file: ModelFile, store: ModelStore) -> None:
    presence = store.presence(file)
    if file.hub and presence is Presence.ABSENT:
        raise ModelFileError(
            f"{path}: the weights of {file.hub} are not here: run fastrun model pull {file.id}"
        )
    if presence is Presence.IN_PART:
        raise ModelFileError(
            f"{path}: its weights are here only in part: run fastrun model pull {file.id}"
        )


def _check_weights(path: Path, file: ModelFile, folder: Path) -> None:
    """Let nobody publish, or size a machine for, other weights than those that lie there."""
    said = file.engine.quantization
    if not said or not folder.is_dir():
        return
    found = _quantization(folder)
    if found not in ("", said):
        raise ModelFileError(
            f"{path}: engine.quantization is {said}, and the weights at {folder} are {found}"
        )


def _quantization(folder: Path) -> str:
    """Return what weights are; empty if that is not told, or for the engine to complain of."""
    try:
        sizes = {each.name: each.stat().st_size for each in folder.iterdir() if each.is_file()}
        return describe(
            choose(sizes),
            sizes,
            read=lambda name: (folder / name).read_bytes(),
            gguf_architecture=lambda _: "",
        ).quantization
    except (CheckpointError, OSError):
        return ""
