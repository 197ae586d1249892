"""The migrations are safe beside running code, as far as a linter can tell."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_squawk_finds_nothing():
    """Squawk agrees with every migration, or the file says beside it why not."""
    squawk = shutil.which("squawk", path=str(Path(sys.executable).parent))
    assert squawk, "squawk is part of the dev extra"
    files = sorted(str(path) for path in (ROOT / "auth_service" / "migrations").glob("*.sql"))
    command = [squawk, "--config", str(ROOT / ".squawk.toml"), *files]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
