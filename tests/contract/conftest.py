"""The tiny model, converted once per session."""

from pathlib import Path

import pytest

from gpu_worker.engine.cpu.model_source import ModelSource
from gpu_worker.engine.cpu.preparation import PreparedModel, prepare

TINY = Path(__file__).parents[1] / "models/tiny/tiny.gguf"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> PreparedModel:
    """A real model, ready to be loaded."""
    return prepare(ModelSource("tiny", TINY), cache=tmp_path_factory.mktemp("models"))
