"""The folder of a worker that has joined."""

import pytest

from fastrun.cli.errors import CommandError
from fastrun.cli.joined import WorkerFolder


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path, mode):
    """They could put another key or head there; nothing is left in it."""
    path = tmp_path / "worker"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(CommandError, match="others may write to"):
        WorkerFolder(path).take()
    assert list(path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_folder_that_its_owner_alone_writes_to_is_taken(tmp_path, mode):
    """Also one that was there before; what is secret in it has modes of its own."""
    path = tmp_path / "worker"
    path.mkdir()
    path.chmod(mode)
    WorkerFolder(path).take()
    assert path.stat().st_mode & 0o777 == mode
