"""Which model files there are on a machine, and whose weights."""

from pathlib import Path

import pytest

from gpu_worker.model_file import ModelFileError
from gpu_worker.model_store import (
    RECORD,
    ModelStore,
    Presence,
    Pulled,
    PulledFile,
    default_folder,
    slug,
    store_of,
)

HUB = 'id = "org/m"\nhub = "org/M"\n'


@pytest.fixture
def store(tmp_path):
    ready = tmp_path / "ready"
    ready.mkdir()
    (ready / "m.toml").write_text(HUB)
    return ModelStore(tmp_path / "own", ready=ready)


def pulled(**values):
    return Pulled(source="org/M", files={"a": PulledFile(3), "b": PulledFile(1, "ff")}, **values)


def test_an_own_file_stands_in_place_of_one_that_comes_along(store):
    """Each id once, whatever the files are called."""
    assert [known.ready_made for known in store.scan()[0]] == [True]
    store.root.mkdir()
    (store.root / "anything.toml").write_text(HUB + 'file = "m.gguf"\n')
    found = store.find("org/m")
    assert (found.ready_made, found.file.file) == (False, "m.gguf")
    assert len(store.scan()[0]) == 1
    assert store.find("org/M") is None
    assert store.weights(found.file) == store.root / "org--m" / "m.gguf"


def test_a_wrong_file_hides_no_other(store):
    """It is told of, and stops whoever asks for its own id."""
    store.root.mkdir()
    (store.root / "other.toml").write_text("id = 1")
    known, [problem] = store.scan()
    assert [each.file.id for each in known] == ["org/m"]
    assert "other.toml" in problem
    assert store.find("org/m")
    with pytest.raises(ModelFileError, match=r"other\.toml"):
        store.find("other")


def test_presence(store):
    """Weights are here when the record says so and every file has its size."""
    file = store.find("org/m").file
    assert store.presence(file) is Presence.ABSENT
    store.record(file, pulled())
    assert store.presence(file) is Presence.IN_PART
    for name, text in (("a", "aaa"), ("b", "b")):
        (store.folder(file) / name).write_text(text)
    assert store.presence(file) is Presence.IN_PART
    store.record(file, pulled(complete=True, revision="c1"))
    assert store.presence(file) is Presence.HERE
    assert (store.pulled(file).revision, store.pulled(file).size) == ("c1", 4)
    (store.folder(file) / "a").write_text("aa")
    assert store.presence(file) is Presence.IN_PART
    (store.folder(file) / RECORD).write_text("{")
    assert store.presence(file) is Presence.ABSENT


def test_a_wrong_file_is_not_written(store):
    """What is written can be read."""
    with pytest.raises(ModelFileError, match="colour"):
        store.write("x", 'id = "x"\npath = "p"\ncolour = 1')
    assert not list(store.root.iterdir())
    assert store.write("a/x", 'id = "a/x"\npath = "/p"') == store.root / "a--x.toml"
    assert store.find("a/x").file.path == "/p"


def test_only_what_lies_in_the_folder_is_removed(store, tmp_path):
    """Weights elsewhere and files that come along stay."""
    weights = tmp_path / "w.gguf"
    weights.write_text("w")
    store.write("x", f'id = "x"\npath = "{weights}"')
    assert store.remove(store.find("x")) == [store.root / "x.toml"]
    assert weights.exists()
    known = store.find("org/m")
    store.record(known.file, pulled())
    assert store.remove(known) == [store.root / "org--m"]
    assert store.find("org/m")
    assert store.remove(known) == []


@pytest.mark.parametrize(
    ("model", "name"),
    [("a/b", "a--b"), ("a b:c", "a-b-c"), ("../x", "--x"), (".", "-"), ("Qwen/Qwen3-32B", None)],
)
def test_names_of_files(model, name):
    """An id never leads out of the folder."""
    assert slug(model) == (name or model.replace("/", "--"))


def test_default_folder():
    """In the user's cache, unless a setting names another."""
    assert default_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/fastrun/weights")
    assert default_folder({"XDG_CACHE_HOME": "c"}) == Path.home() / ".cache/fastrun/weights"
    assert store_of("/models").root == Path("/models")
