import os
import subprocess
from pathlib import Path

import pytest

INSTALL = Path(__file__).parents[3] / "requirements" / "install"


@pytest.mark.parametrize(
    ("megabytes", "complaint"),
    [(1, "/nowhere is not Python 3.11 to 3.14"), (10**9, "MB left and 1000000000 MB are needed")],
)
def test_room(tmp_path, megabytes, complaint):
    """An environment is made where there is the room that it needs, whatever others would need."""
    done = subprocess.run(
        [INSTALL, tmp_path / "venv", "create", str(megabytes)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": "/nowhere"},
    )

    assert done.returncode == 1
    assert done.stderr.startswith("fastrun: ")
    assert complaint in done.stderr
