"""Entries of the model cache: whole or not there."""

import threading

import pytest

from gpu_worker.engine.cpu.model_cache import MARKER, ModelCache, is_complete, user_cache
from gpu_worker.engine.errors import ModelError


def silent(phase, fraction):
    pass


class Builder:
    """Writes an entry and counts how often."""

    def __init__(self):
        self.built = 0

    def __call__(self, folder):
        self.built += 1
        (folder / "weights").write_bytes(b"1234")
        (folder / "facts").write_bytes(b"{}")


@pytest.fixture
def build():
    return Builder()


def test_builds_once(tmp_path, build):
    """An entry is built when it is missing, and found from then on."""
    cache = ModelCache(tmp_path / "new" / "cache")
    folder = cache.entry("key", "1", build, silent)
    assert folder == cache.entry("key", "1", build, silent)
    assert build.built == 1
    assert (folder / "weights").read_bytes() == b"1234"


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "weights").unlink(),
        lambda folder: (folder / "weights").write_bytes(b"12"),
        lambda folder: (folder / "weights").write_bytes(b"1235"),
        lambda folder: (folder / MARKER).unlink(),
        lambda folder: (folder / MARKER).write_bytes(b"{"),
        lambda folder: (folder / MARKER).write_bytes(b'{"a": 1}'),
    ],
)
def test_damaged_entry_is_built_again(tmp_path, build, damage):
    """A missing, shortened or changed file, or marker, makes the entry worthless."""
    cache = ModelCache(tmp_path)
    folder = cache.entry("key", "1", build, silent)
    damage(folder)
    assert is_complete(cache.entry("key", "1", build, silent))
    assert build.built == 2


def test_failed_build_leaves_nothing(tmp_path, build):
    """A build that fails leaves no entry and no temporary folder."""

    def fail(folder):
        build(folder)
        raise ModelError("broken")

    cache = ModelCache(tmp_path)
    with pytest.raises(ModelError, match="broken"):
        cache.entry("key", "1", fail, silent)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert is_complete(cache.entry("key", "1", build, silent))


def test_leftovers_of_a_killed_build_are_removed(tmp_path, build):
    """What a killed process left half-written is never used, and cleared away."""
    leftover = tmp_path / "key-1.building-abc"
    leftover.mkdir()
    (leftover / "weights").write_bytes(b"12")
    ModelCache(tmp_path).entry("key", "1", build, silent)
    assert not leftover.exists()


def test_two_at_once_build_once(tmp_path, build):
    """Whoever comes while an entry is being built waits for it, and is told."""
    began, finish = threading.Event(), threading.Event()
    phases = []
    waits = threading.Event()

    def slow(folder):
        began.set()
        assert finish.wait(10)
        build(folder)

    def told(phase, fraction):
        phases.append(phase)
        waits.set()

    first = threading.Thread(target=ModelCache(tmp_path).entry, args=("key", "1", slow, silent))
    first.start()
    assert began.wait(10)
    second = threading.Thread(target=ModelCache(tmp_path).entry, args=("key", "1", build, told))
    second.start()
    assert waits.wait(10)
    finish.set()
    first.join()
    second.join()
    assert build.built == 1
    assert phases == ["waiting for another process that converts this model"]


def test_folder_that_cannot_be_written(tmp_path, build):
    """A cache folder that cannot be made is named, with what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="XDG_CACHE_HOME"):
        ModelCache(tmp_path / "file" / "cache").entry("key", "1", build, silent)


def test_full_disk(tmp_path):
    """A disk that fills up while building is explained in the same words."""

    def full(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelError, match=r"No space left on device.*XDG_CACHE_HOME"):
        ModelCache(tmp_path).entry("key", "1", full, silent)


def test_complete_entry_needs_no_writing(tmp_path, build):
    """An entry that is whole is used from a folder that nothing can be written to."""
    folder = ModelCache(tmp_path).entry("key", "1", build, silent)
    (tmp_path / "key-1.lock").unlink()
    (tmp_path / "key-1.lock").mkdir()  # would fail if it were opened
    assert folder == ModelCache(tmp_path).entry("key", "1", build, silent)


def test_user_cache_follows_xdg(tmp_path, monkeypatch):
    """Models lie below XDG_CACHE_HOME, else below ~/.cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "fastrun" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_cache() == tmp_path / "home" / ".cache" / "fastrun" / "models"


def test_new_version_replaces_the_old_one(tmp_path, build):
    """What another version made of the same model is removed, and of other models kept."""
    cache = ModelCache(tmp_path)
    old = cache.entry("key", "1", build, silent)
    other = cache.entry("other", "1", build, silent)
    new = cache.entry("key", "2", build, silent)
    assert is_complete(new)
    assert is_complete(other)
    assert not old.exists()
