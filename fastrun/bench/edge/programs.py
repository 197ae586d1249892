"""The programs in C that come along as source: compiled when they are first needed."""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from fastrun.bench.edge.errors import EdgeBenchError

FLAGS = ("-std=gnu11", "-O2")


def program(name: str, environ: Mapping[str, str]) -> Path:
    """Return an executable; it is kept in the user's cache folder.

    Args:
        name: of the source beside this module, without `.c`.
        environ: our own; CC in it is the compiler, and XDG_CACHE_HOME is heeded.

    Raises:
        EdgeBenchError: it cannot be compiled here.
    """
    source = files("fastrun.bench.edge").joinpath(f"{name}.c").read_bytes()
    folder = cache_folder(environ)
    kept = folder / f"{name}-{hashlib.sha256(source).hexdigest()[:16]}"
    if kept.exists():
        return kept
    compiler = shutil.which(environ.get("CC", "cc"))
    if compiler is None:
        raise EdgeBenchError(
            "the load is made by a program in C: install a C compiler, such as gcc, or set CC"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            made = Path(temporary) / name
            _compile([compiler, *FLAGS, "-x", "c", "-o", str(made), "-"], source)
            made.replace(kept)
    except OSError as error:
        raise EdgeBenchError(
            f"cannot compile in {folder}: {error.strerror}; set XDG_CACHE_HOME to another folder"
        ) from error
    return kept


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return where programs are kept: below XDG_CACHE_HOME, else below ~/.cache; pure."""
    chosen = Path(environ.get("XDG_CACHE_HOME", ""))
    base = chosen if chosen.is_absolute() else Path.home() / ".cache"
    return base / "fastrun" / "bench"


def _compile(command: list[str], source: bytes) -> None:
    result = subprocess.run(command, input=source, capture_output=True, check=False)  # noqa: S603 - the user's own compiler
    if result.returncode != 0:
        lines = result.stderr.decode(errors="replace").splitlines() or ["it says nothing"]
        raise EdgeBenchError(f"{command[0]} cannot compile the load: {lines[0]}")
