"""Whether the model that a worker is to run is here, whole, and one that its engine can run."""

from collections.abc import Mapping
from pathlib import Path

from fastrun.cli import pulling
from fastrun.cli.doctor.finding import Finding, ok, skipped, warning, wrong
from fastrun.cli.errors import CommandError
from fastrun.cli.local_models import target
from fastrun.cli.sources import FolderSource
from fastrun.service import config as settings
from gpu_worker.config import Config
from gpu_worker.engine.cpu.model_cache import file_sha256, user_cache
from gpu_worker.engine.cpu.model_source import ModelSource, model_source
from gpu_worker.engine.errors import ModelError
from gpu_worker.engine.tensorrt_llm import model_folder
from gpu_worker.engine.tensorrt_llm.errors import StartupError
from gpu_worker.model_file import EngineTable, ModelFileError
from gpu_worker.model_fit import objections
from gpu_worker.model_settings import with_model
from gpu_worker.model_store import ModelStore, store_of


def check(config: Config, environ: Mapping[str, str]) -> tuple[Config, Finding]:
    """Look at the model of a worker's settings, without loading it.

    Returns:
        The settings, with those of the model's file; and what was found.
    """
    if config.engine == "scripted":
        return config, skipped("model", "the scripted engine needs none")
    store = store_of(config.models)
    try:
        config = with_model(
            config, store, is_set=lambda name: bool(settings.explicit("worker", name, environ))
        )
        return config, _look(config, store)
    except (ModelFileError, ModelError, StartupError, CommandError) as error:
        return config, wrong("model", str(error))


def _look(config: Config, store: ModelStore) -> Finding:
    name, path = _found(config, store)
    reasons = _objections(path, config)
    if not reasons:
        return ok("model", f"{name} is here, and the {config.engine} engine can run it")
    # Of TensorRT-LLM it is known what it lists, and not all that it can run.
    state = wrong if config.engine == "cpu" else warning
    return state("model", f"{path}: {'; '.join(reasons)}: choose another model or engine")


def cache(config: Config) -> Path:
    """Where the CPU engine keeps what it has made of a model."""
    return Path(config.cache).expanduser() if config.cache else user_cache()


def _found(config: Config, store: ModelStore) -> tuple[str, Path]:
    if config.engine == "tensorrt-llm":
        folder = model_folder.find(config.model, store)
        return folder.name, folder.path
    source = model_source(config.model or None, store)
    _check_digest(source)
    return source.name, source.path


def _check_digest(source: ModelSource) -> None:
    if source.sha256 and file_sha256(source.path) != source.sha256:
        raise ModelError(f"{source.path} is damaged: install it again with fastrun model pull")


def _objections(path: Path, config: Config) -> list[str]:
    sizes = EngineTable(
        tensor_parallel=config.tensor_parallel, pipeline_parallel=config.pipeline_parallel
    )
    on = target("cpu" if config.engine == "cpu" else "tensorrt-llm", None, sizes)
    return objections(pulling.look(FolderSource(path), on).model, on)
