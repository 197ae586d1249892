import os
import stat
from pathlib import Path

import pytest

from fastrun.local.errors import LocalError
from fastrun.local.folder import DataFolder, State, default_path

STATE = State(
    pid=os.getpid(),
    base_url="http://127.0.0.1:8000/v1",
    model="tiny",
    auth_address="127.0.0.1:1",
    scheduler_address="127.0.0.1:2",
)


@pytest.fixture
def folder(tmp_path):
    folder = DataFolder(tmp_path / "a folder")
    yield folder
    folder.release()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_one_stack_at_a_time(folder):
    """A folder that is taken refuses a second stack and says where the first one is."""
    folder.acquire()
    folder.publish(STATE)

    with pytest.raises(LocalError) as refused:
        DataFolder(folder.path).acquire()

    assert str(refused.value) == (
        f"already running at http://127.0.0.1:8000/v1, pid {os.getpid()}: stop it with "
        "fastrun down, or start another one beside it with --data DIR --port 0"
    )


def test_still_starting(folder):
    """A folder whose stack is not ready yet says which process is starting it."""
    folder.acquire()

    with pytest.raises(LocalError, match=f"already starting or stopping in .*pid {os.getpid()}"):
        DataFolder(folder.path).acquire()


def test_released(folder):
    """A folder that was given back can be taken again, and shows no stack."""
    folder.acquire()
    folder.publish(STATE)
    folder.release()

    assert folder.state() is None
    assert folder.holder() is None
    folder.acquire()


def test_state_of_the_dead(folder):
    """What a killed stack has left in its state file is not believed."""
    folder.acquire()
    folder.publish(STATE)
    left = (folder.path / "state.json").read_bytes()
    folder.release()
    (folder.path / "state.json").write_bytes(left)

    assert folder.state() is None


def test_found_by_others(folder):
    """Another process finds the stack that runs."""
    folder.acquire()
    folder.publish(STATE)

    other = DataFolder(folder.path)

    assert other.state() == STATE
    assert other.holder() == os.getpid()


def test_secrets_are_private(folder):
    """Pepper and state can be read by their owner only, and the pepper stays the same."""
    folder.acquire()
    folder.publish(STATE)
    pepper = folder.pepper().read_text()

    assert len(pepper) == 64
    assert folder.pepper().read_text() == pepper
    assert {mode(folder.path / name) for name in ("pepper", "state.json", "lock")} == {0o600}


def test_reset_forgets(folder):
    """A reset removes what was kept and nothing else."""
    folder.acquire()
    folder.pepper()
    folder.postgres.mkdir()
    (folder.path / "note").write_text("mine")
    folder.release()

    folder.acquire(reset=True)

    assert sorted(path.name for path in folder.path.iterdir()) == ["lock", "logs", "note"]


def test_foreign_folder(folder):
    """A folder with other files in it is not made ours."""
    folder.path.mkdir()
    (folder.path / "thesis.tex").write_text("mine")

    with pytest.raises(LocalError, match="holds other files: choose another folder with --data"):
        folder.acquire()


def test_not_a_folder(tmp_path):
    """A path that cannot be a folder is refused in one sentence."""
    (tmp_path / "file").write_text("")

    with pytest.raises(LocalError, match=r"cannot keep data in .*file/data: Not a directory"):
        DataFolder(tmp_path / "file" / "data").acquire()


def test_no_room(folder, monkeypatch):
    """A disk without room for a database is told before one is begun."""
    monkeypatch.setattr("fastrun.local.folder.FREE_BYTES", 1 << 60)

    with pytest.raises(LocalError, match="MB left and a database needs"):
        folder.acquire()


def test_temporary_leaves_nothing():
    """A temporary folder is removed with all that is in it."""
    folder = DataFolder.temporary()
    folder.acquire()
    folder.pepper()
    folder.release()

    assert not folder.path.exists()


def test_default_path(tmp_path):
    """FASTRUN_DATA goes before XDG_DATA_HOME, and a relative XDG_DATA_HOME counts for nothing."""
    assert default_path({"FASTRUN_DATA": str(tmp_path)}) == tmp_path
    assert default_path({"XDG_DATA_HOME": "relative"}) == default_path({})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as another user")
def test_closed_home_of_root(tmp_path):
    """As root, a data folder that other users cannot reach is replaced by the system's."""
    tmp_path.chmod(0o700)

    assert default_path({"XDG_DATA_HOME": str(tmp_path)}) == Path("/var/lib/fastrun")
