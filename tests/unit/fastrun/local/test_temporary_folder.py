import os
import subprocess
import sys
import tempfile

import pytest

from fastrun.local.errors import LocalError
from fastrun.local.folder import DataFolder
from fastrun.local.temporary_folder import TemporaryFolder, sweep

KILLED = """
import os, signal
from fastrun.local.folder import DataFolder
folder = DataFolder.temporary()
folder.acquire()
(folder.spool / "deep").mkdir(parents=True)
print(folder.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Where folders are made, here and in processes that are started."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path
    tempfile.tempdir = None


def test_it_goes_with_its_run(temporary):
    """A folder is there as long as it is in use, and no longer."""
    with TemporaryFolder() as folder:
        (folder.path / "file").touch()
        assert list(temporary.iterdir()) == [folder.path]
    folder.close()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_run_left_goes_with_the_next(temporary):
    """A run that was killed with all that watches over it leaves a folder until another one is made."""
    killed = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True)
    assert killed.returncode < 0
    assert [str(path) for path in temporary.iterdir()] == [killed.stdout.strip()]

    folder = DataFolder.temporary()

    assert list(temporary.iterdir()) == [folder.path]
    folder.release()


def test_others_stay(temporary):
    """What is in use, being made, somebody else's or no folder of a run stays as it is."""
    made = TemporaryFolder()
    begun = temporary / "fastrun-begun"
    begun.mkdir()
    (begun / ".owner").touch()
    kept = temporary / "fastrun-kept"
    kept.mkdir()
    (kept / "lock").write_text("1")
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".owner").write_text("1")
    (temporary / "fastrun-link").symlink_to(elsewhere)
    before = set(temporary.rglob("*"))

    sweep(temporary)

    assert set(temporary.rglob("*")) == before
    made.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_another_users_folder_stays(temporary):
    """Root sweeps its own folders only."""
    folder = temporary / "fastrun-theirs"
    folder.mkdir()
    (folder / ".owner").write_text("1")
    os.chown(folder, 65534, 65534)
    sweep(temporary)
    assert folder.exists()


def test_no_room(monkeypatch):
    """Where no folder can be made, one sentence says what to do."""
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(LocalError, match="set TMPDIR to one with room"):
        TemporaryFolder()
