"""A model as TensorRT-LLM loads it: a folder in Hugging Face's format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpu_worker.dialect.tokenizer import JsonTokenizer
from gpu_worker.engine.errors import ModelError
from gpu_worker.engine.model_facts import (
    TOKENIZER,
    ModelFacts,
    companion_facts,
    read_json,
    read_tokenizer,
)
from gpu_worker.engine.tensorrt_llm.errors import StartupError
from gpu_worker.model_file import Dialect, ModelFileError, PublicFacts, named_by, read
from gpu_worker.model_store import ModelStore, store_of

NO_MODEL = (
    "this engine needs a model: pass NAME=FOLDER, FILE.toml or an id of fastrun model list --all"
)


class ModelFolder(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker has to know of it before it is loaded."""

    name: str
    path: Path
    facts: ModelFacts
    tokenizer: JsonTokenizer
    vocabulary: int  # how many logits the model has
    eos_id: int | None  # the one end token that its tokenizer names, with which guides end
    dialect: Dialect = Dialect()
    public: PublicFacts = PublicFacts()

    @property
    def tokenizer_file(self) -> Path:
        """The file with its vocabulary."""
        return self.path / TOKENIZER


def find(argument: str, store: ModelStore | None = None) -> ModelFolder:
    """Read the folder that ``model`` names.

    Args:
        argument: NAME=FOLDER, or a model file.
        store: where the weights of a model file lie that names a hub; default: this user's.

    Raises:
        StartupError: there is none, or it lacks something.
    """
    dialect, public = Dialect(), PublicFacts()
    name, _, text = argument.partition("=")
    if path := named_by(argument):
        try:
            file = read(path)
        except ModelFileError as error:
            raise StartupError(str(error)) from error
        name, text = file.id, str((store or store_of("")).weights(file))
        dialect, public = file.dialect, file.facts
    elif not (name and text):
        raise StartupError(f"{NO_MODEL}, not {argument!r}" if argument else NO_MODEL)
    folder = Path(text).expanduser().absolute()
    try:
        return _read(name, folder, dialect, public)
    except (ModelError, OSError) as error:
        raise StartupError(f"model {name!r} at {folder} cannot be used: {error}") from error


def _read(name: str, folder: Path, dialect: Dialect, public: PublicFacts) -> ModelFolder:
    if not folder.is_dir():
        raise ModelError("there is no such folder")
    tokenizer = read_tokenizer(folder)
    facts = companion_facts(folder, tokenizer, created=int(folder.stat().st_mtime))
    config = read_json(folder / "config.json")
    vocabulary = config.get("text_config", config).get("vocab_size")
    if not isinstance(vocabulary, int):
        raise ModelError("its config.json lacks vocab_size")
    return ModelFolder(
        name=name,
        path=folder,
        facts=facts,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        eos_id=_tokenizers_eos(tokenizer, facts, config),
        dialect=dialect,
        public=public,
    )


def _tokenizers_eos(
    tokenizer: JsonTokenizer, facts: ModelFacts, config: Mapping[str, Any]
) -> int | None:
    """Return the end token that tokenizer_config.json names, or config.json if it does not.

    The library ends guides with that one and no other.
    """
    named = tokenizer.special_tokens.get(facts.eos_token)
    configured = config.get("eos_token_id")
    ids = [named, *(configured if isinstance(configured, list) else [configured]), *facts.eos_ids]
    return next((token_id for token_id in ids if token_id in facts.eos_ids), None)
