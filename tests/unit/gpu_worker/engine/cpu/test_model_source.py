"""Which model ``--model`` means."""

import pytest

from gpu_worker.engine.cpu.model_source import (
    DEFAULT_NAME,
    DEFAULT_SHA256,
    ModelSource,
    default_source,
    model_source,
)
from gpu_worker.engine.errors import ModelError


def test_name_and_path(tmp_path):
    """NAME=PATH names a file or folder; the path may hold further equals signs."""
    path = tmp_path / "a=b.gguf"
    path.touch()
    assert model_source(f"my/model={path}") == ModelSource("my/model", path)


@pytest.mark.parametrize("argument", ["", "name", "name=", "=/path"])
def test_refuses_other_forms(argument):
    """Anything else is refused with the form it should have."""
    with pytest.raises(ModelError, match="NAME=PATH"):
        model_source(argument)


def test_refuses_a_missing_path(tmp_path):
    """A path where nothing is gets named."""
    with pytest.raises(ModelError, match="no model at"):
        model_source(f"name={tmp_path / 'missing'}")
    file = tmp_path / "mine.toml"
    file.write_text('id = "mine"\npath = "missing"\n')
    with pytest.raises(ModelError, match=r"mine\.toml: there is no model at .*missing$"):
        model_source(str(file))


def test_default_is_found_without_importing_its_package():
    """No argument and the default's own name both mean the weights in the package."""
    source = model_source(None)
    assert (source.name, source.sha256) == (DEFAULT_NAME, DEFAULT_SHA256)
    assert source == model_source(DEFAULT_NAME)
    assert (source.temperature, source.top_p) == (0.2, 0.9)


def test_missing_default():
    """Without the package one sentence says what to do."""
    with pytest.raises(ModelError) as caught:
        default_source("no_such_package")
    assert str(caught.value) == (
        "no model found: run fastrun model pull, or pass --model NAME=PATH"
    )


def test_a_model_file_names_weights_and_dialect(tmp_path):
    """An argument that ends in .toml is a model file; what is wrong with it is said."""
    (tmp_path / "w.gguf").write_bytes(b"GGUF")
    path = tmp_path / "m.toml"
    path.write_text('id = "m"\npath = "w.gguf"\n[dialect]\nfamily = "plain"')
    source = model_source(str(path))
    assert (source.name, source.path) == ("m", tmp_path / "w.gguf")
    assert source.dialect.family == "plain"
    path.write_text('id = "m"\npath = "w.bin"')
    with pytest.raises(ModelError, match=r"w\.bin"):
        model_source(str(path))
    path.write_text("id = 5")
    with pytest.raises(ModelError, match=r"m\.toml"):
        model_source(str(path))
