"""The packages from npm that tests use, installed once for each environment."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parent / "clients" / "js" / "package.json"
INSTALL_S = 300
RUN_S = 60

Node = Callable[[Path, dict[str, str]], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def node() -> Node:
    """Run a module of JavaScript that may import them."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if not (node and npm):
        pytest.skip("node and npm are not installed")
    folder = Path(sys.prefix) / "node"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:  # other processes of the same run wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(npm, folder)

    def run(module: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
        # Packages are found from where a module lies.
        copy = folder / f"{os.getpid()}-{module.name}"
        copy.write_text(module.read_text())
        try:
            return subprocess.run(
                [node, str(copy)],
                check=False,
                capture_output=True,
                text=True,
                env={**os.environ, **environ},
                timeout=RUN_S,
            )
        finally:
            copy.unlink()

    return run


def _install(npm: str, folder: Path) -> None:
    """Install what is not there yet into the environment's own folder."""
    copy = folder / PACKAGES.name
    done = folder / ".installed"
    wanted = PACKAGES.read_text()
    if not (done.exists() and done.read_text() == wanted):
        copy.write_text(wanted)
        command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--no-save"]
        try:
            made = subprocess.run(
                command, check=False, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm install took longer than {INSTALL_S} s")
        if made.returncode:
            pytest.skip(f"npm cannot install: {made.stderr.strip().splitlines()[-1:]}")
        done.write_text(wanted)
