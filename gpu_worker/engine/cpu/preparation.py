"""Makes a model that somebody has into files that the engine loads; converts once, then caches."""

import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from gpu_worker.dialect.gguf_tokenizer import tokenizer_json
from gpu_worker.dialect.tokenizer import JsonTokenizer, TokenizerError
from gpu_worker.engine.cpu import conversion
from gpu_worker.engine.cpu.gguf import read_gguf
from gpu_worker.engine.cpu.model_cache import ModelCache, Progress, file_sha256, user_cache
from gpu_worker.engine.cpu.model_source import ModelSource
from gpu_worker.engine.cpu.precision import Precision
from gpu_worker.engine.cpu.processor import processor
from gpu_worker.engine.errors import ModelError
from gpu_worker.engine.model_facts import TOKENIZER, ModelFacts, folder_facts, gguf_facts

# Raised whenever the same file would be converted to something else.
CONVERTER = "4"
FACTS = "facts.json"


class PreparedModel(ModelFacts, frozen=True, kw_only=True):
    """A model ready to be loaded."""

    name: str
    precision: Precision
    ir: Path  # openvino_model.xml, its weights beside it
    tokenizer: Path  # tokenizer.json


def prepare(
    source: ModelSource,
    *,
    precision: Precision = "exact",
    cache: Path | None = None,
    progress: Progress = lambda _phase, _fraction: None,
) -> PreparedModel:
    """Convert a model, or find it converted; takes seconds, never uses the network.

    Args:
        source: a GGUF file or an OpenVINO folder; a folder is used where it is.
        precision: ``exact`` gives answers that do not depend on what else runs; ``fast``
            multiplies by weights in 8-bit integers where the CPU can, and halves the cache.
        cache: where converted models lie; by default in the user's cache folder.
        progress: told what is being done.

    Raises:
        ModelError: the model cannot be used, or the cache folder cannot be written.
    """
    try:
        if source.path.is_dir():
            return _prepared(source.name, precision, source.path, folder_facts(source.path))
        return _prepare_gguf(source, precision, ModelCache(cache or user_cache()), progress)
    except (ModelError, TokenizerError) as error:
        raise ModelError(f"model {source.name!r} cannot be used: {error}") from error


def _prepare_gguf(
    source: ModelSource, precision: Precision, cache: ModelCache, progress: Progress
) -> PreparedModel:
    def build(folder: Path) -> None:
        _convert(source.path, folder, precision, progress)

    phase = "checking the model's weights"
    try:
        digest = file_sha256(source.path, lambda fraction: progress(phase, fraction))
    except OSError as error:
        raise ModelError(f"{source.path} cannot be read ({error.strerror})") from error
    if source.sha256 not in (None, digest):
        raise ModelError(f"{source.path} is damaged: install it again with fastrun model pull")
    # Each precision has a form of its own, and a lowered one is for one kind of processor.
    folder = cache.entry(f"{digest[:32]}-{precision}", converter_version(), build, progress)
    facts = msgspec.json.decode((folder / FACTS).read_bytes(), type=ModelFacts)
    if facts.temperature is None and facts.top_p is None:
        facts = msgspec.structs.replace(facts, temperature=source.temperature, top_p=source.top_p)
    return _prepared(source.name, precision, folder, facts)


def _convert(gguf: Path, folder: Path, precision: Precision, progress: Progress) -> None:
    """Write a cache entry."""
    progress("reading the model's vocabulary", None)
    metadata = read_gguf(gguf).metadata
    text = tokenizer_json(metadata)
    facts = gguf_facts(metadata, JsonTokenizer(text), created=int(gguf.stat().st_mtime))
    needed, free = gguf.stat().st_size, shutil.disk_usage(folder).free
    needed = needed * 9 // 4  # the result is written twice before the first is removed
    if free < needed:
        raise ModelError(
            f"the cache folder {folder.parent} has {free >> 20} MB free and needs "
            f"{needed >> 20}: make room, or set XDG_CACHE_HOME to another folder"
        )
    progress("converting the model", None)
    conversion.convert(gguf, folder, precision)
    (folder / TOKENIZER).write_text(text, encoding="utf-8")
    (folder / FACTS).write_bytes(msgspec.json.encode(facts))


def _prepared(name: str, precision: Precision, folder: Path, facts: ModelFacts) -> PreparedModel:
    return PreparedModel(
        name=name,
        precision=precision,
        ir=folder / conversion.RESULT,
        tokenizer=folder / TOKENIZER,
        **msgspec.structs.asdict(facts),
    )


def converter_version() -> str:
    """Name what a conversion's result depends on beside the file."""
    try:
        return f"{CONVERTER}-{version('openvino-genai')}-{processor()}"
    except PackageNotFoundError as error:
        raise ModelError("the CPU engine is missing: pip install 'fastrun[cpu]'") from error
