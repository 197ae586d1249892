"""A converted model, replaced by what OpenVINO's passes make of it."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from processors import needs_avx2

from gpu_worker.engine.cpu import lowering
from gpu_worker.engine.cpu.model_source import ModelSource
from gpu_worker.engine.cpu.preparation import prepare

GGUF = Path(__file__).parents[2] / "models" / "tiny" / "tiny.gguf"


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A model as the converter left it."""
    cache = tmp_path_factory.mktemp("models")
    return prepare(ModelSource("tiny", GGUF), precision="fast", cache=cache).ir


@pytest.fixture
def model(converted, tmp_path):
    """A copy of it, beside nothing else."""
    for path in (converted, converted.with_suffix(".bin")):
        shutil.copy(path, tmp_path)
    return tmp_path / converted.name


def content(model):
    return {path.name: path.read_bytes() for path in model.parent.iterdir()}


@needs_avx2
def test_a_lowered_model_takes_the_place_of_the_converted_one(model):
    """It is smaller in operators, knows its heads, and is used in place of the other."""
    before = content(model)
    assert lowering.lower(model)
    after = content(model)
    assert set(after) == set(before) | {"heads.json"}
    layers = [files[model.name].count(b"<layer ") for files in (before, after)]
    assert layers[1] < layers[0]


def test_what_computes_otherwise_is_not_kept(model, monkeypatch):
    """A form that gives other bits leaves the model as it was converted."""
    before, count = content(model), itertools.count()
    monkeypatch.setattr(lowering, "_first_logits", lambda _: np.array([next(count)]))
    assert not lowering.lower(model)
    assert content(model) == before


def test_what_cannot_be_exported_stays(model, monkeypatch):
    """Whatever OpenVINO raises on the way leaves the model as it was converted."""

    def fail(*_):
        raise RuntimeError("not implemented")

    monkeypatch.setattr(lowering, "_export", fail)
    before = content(model)
    assert not lowering.lower(model)
    assert content(model) == before


def test_large_models_are_not_lowered(model, monkeypatch):
    """Where weights take the time, nothing is tried."""
    monkeypatch.setattr(lowering, "MOST_BYTES", 1)
    before = content(model)
    assert not lowering.lower(model)
    assert content(model) == before
