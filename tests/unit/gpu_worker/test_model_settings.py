"""What a model file sets, and where a model has to be."""

import pytest

from gpu_worker.config import Config
from gpu_worker.model_file import ModelFileError
from gpu_worker.model_settings import with_model
from gpu_worker.model_store import ModelStore, Pulled

TEXT = 'id = "org/m"\nhub = "org/M"\n[engine]\nslots = 7\ncontext_length = 99\nprecision = "fast"\n'


@pytest.fixture
def store(tmp_path):
    store = ModelStore(tmp_path, ready=tmp_path / "none")
    store.write("org/m", TEXT)
    store.record(store.find("org/m").file, Pulled(source="org/M", files={}, complete=True))
    return store


def settled(store, *is_set, **settings):
    return with_model(Config(**settings), store, is_set=lambda name: name in is_set)


def test_a_model_is_named_by_its_id(store):
    """Its file's settings stand where nobody has set them."""
    config = settled(store, model="org/m", kv_cache_mib=5)
    assert config.model == str(store.root / "org--m.toml")
    assert (config.slots, config.context_length, config.precision) == (7, 99, "fast")
    assert config.kv_cache_mib == 5


def test_what_somebody_has_set_stands(store):
    """Also where it is the default."""
    config = settled(store, "slots", model=str(store.root / "org--m.toml"))
    assert (config.slots, config.context_length) == (32, 99)


@pytest.mark.parametrize("model", ["", "m=/path", "org/other"])
def test_other_models_leave_the_settings_alone(store, model):
    """The engines say what is wrong with a name that nobody knows."""
    assert settled(store, model=model) == Config(model=model)


def test_the_scripted_engine_reads_no_file(store):
    """It has a model of its own, whatever it is called."""
    assert settled(store, model="org/m", engine="scripted").slots == 32


def test_weights_that_are_not_here_are_told_of(store):
    """With the command that gets them."""
    store.record(store.find("org/m").file, Pulled(source="org/M", files={}))
    with pytest.raises(ModelFileError, match=r"m\.toml: .*only in part: .* model pull org/m$"):
        settled(store, model="org/m")
    (store.folder(store.find("org/m").file) / "pulled.json").unlink()
    with pytest.raises(ModelFileError, match="org/M are not here"):
        settled(store, model="org/m")


def test_what_is_wrong_with_the_file_is_said(store):
    """By its name and the key."""
    store.file_path("org/m").write_text(TEXT + "tp = 2")
    with pytest.raises(ModelFileError, match=r"org--m\.toml: there is no key engine\.tp: "):
        settled(store, model="org/m")


def test_weights_have_to_be_what_the_file_says(store):
    """Told before they are loaded."""
    store.file_path("org/m").write_text(TEXT + 'quantization = "fp8"')
    assert settled(store, model="org/m").slots == 7
    folder = store.folder(store.find("org/m").file)
    (folder / "model.safetensors").write_text("")
    (folder / "config.json").write_text('{"dtype": "bfloat16"}')
    with pytest.raises(ModelFileError, match=r"quantization is fp8, and the weights .* are bf16"):
        settled(store, model="org/m")
    (folder / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    assert settled(store, model="org/m").slots == 7
    (folder / "config.json").write_text("{")
    assert settled(store, model="org/m").slots == 7
