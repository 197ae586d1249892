"""`fastrun bench engine` on the tiny model, for a moment."""

import json
import subprocess
import sys
from pathlib import Path

TINY = Path(__file__).parents[2] / "models" / "tiny" / "tiny.gguf"


def bench(*arguments):
    """Run it to its end."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "fastrun.cli", "bench", "engine", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_figures_of_our_engine():
    """Each number of streams has a record, and all tokens came."""
    small = ("--streams", "1", "--streams", "3", "--tokens", "5", "--repeat", "1", "--threads", "1")
    result = bench("--model", TINY, "--engine", "fastrun", *small, "--json")

    assert result.returncode == 0, result.stderr
    one, three = json.loads(result.stdout)
    assert [(each["engine"], each["streams"]) for each in (one, three)] == [
        ("fastrun", 1),
        ("fastrun", 3),
    ]
    assert all(each["tokens_per_cpu_s"] > 0 and each["first_token_ms"] > 0 for each in (one, three))


def test_an_engine_that_is_missing_is_named():
    """With those that are there."""
    result = bench("--engine", "xllamacpp")
    assert result.returncode == 1
    assert "xllamacpp is not here: choose among fastrun, " in result.stderr
