"""`fastrun bench start` on the tiny model."""

import json
import os
import subprocess
import sys
from pathlib import Path

TINY = Path(__file__).parents[2] / "models" / "tiny" / "tiny.gguf"


def bench(tmp_path, **environ):
    """Run it to its end, with one start that counts."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "fastrun.cli", "bench", "start", "--repeat", "1", "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), **environ},
    )


def test_a_start_has_its_figures(tmp_path):
    """The start that may have to convert the model is not among them."""
    result = bench(tmp_path, FASTRUN_WORKER_MODEL=f"tiny={TINY}")
    assert result.returncode == 0, result.stderr
    (start,) = json.loads(result.stdout)
    assert start["seconds"] > 0
    assert start["cpu_seconds"] > 0


def test_a_worker_that_does_not_start(tmp_path):
    """Why is said in one sentence."""
    result = bench(tmp_path, FASTRUN_WORKER_MODEL="tiny=/no/such.gguf")
    assert result.returncode == 1
    assert "there is no model at /no/such.gguf: look at the path" in result.stderr
    assert "Traceback" not in result.stderr
