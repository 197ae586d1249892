"""Which settings a model file brings, and whether its model is here: before any engine starts."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from gpu_worker.config import Config
from gpu_worker.model_file import SUFFIX, ModelFile, ModelFileError, read
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
    given = file.engine.settings()
    values = {name: value for name, value in given.items() if not is_set(name)}
    return msgspec.structs.replace(config, model=str(path), **values)


def _path(model: str, store: ModelStore) -> Path | None:
    if not model or "=" in model:
        return None
    if model.endswith(SUFFIX):
        return Path(model).expanduser().absolute()
    found = store.find(model)
    return found.path if found else None


def _check_presence(path: Path, file: ModelFile, store: ModelStore) -> None:
    presence = store.presence(file)
    if file.hub and presence is not Presence.HERE:
        here = "not here" if presence is Presence.ABSENT else "here only in part"
        raise ModelFileError(
            f"{path}: the weights of {file.hub} are {here}: run fastrun model pull {file.id}"
        )
