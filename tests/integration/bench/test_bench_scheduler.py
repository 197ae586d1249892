"""`fastrun bench scheduler` on a real scheduler, for a moment."""

import json
import os
import subprocess
import sys

import pytest

SMALL = (
    *("--workers", "2", "--slots", "64", "--hold-ms", "5"),
    *("--flat-out", "60", "--rate", "100", "--seconds", "0.3"),
)


@pytest.fixture
def bench(tmp_path):
    """Run it to its end."""

    def bench(*arguments, program=("-m", "fastrun.cli"), **environ):
        return subprocess.run(
            [sys.executable, "-P", *program, "bench", "scheduler", *arguments],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, **environ},
            timeout=120,
        )

    return bench


def test_figures(bench):
    """Each load has a record: all that was asked for was granted, and it cost something."""
    result = bench(*SMALL, "--json")

    assert result.returncode == 0, result.stderr
    flat_out, paced = json.loads(result.stdout)
    assert (flat_out["rate"], paced["rate"]) == (0.0, 100.0)
    for each in (flat_out, paced):
        assert each["refused"] == 0
        assert each["granted_per_s"] > 0
        assert 0 < each["p50_ms"] <= each["p99_ms"] <= each["most_ms"]
        assert each["cpu_us"] > 0
        assert 0 <= each["late_ms"] <= each["late_most_ms"]
        assert each["load_busy"] > 0
        assert each["resident_mib"] > 1


def test_table(bench):
    """People get a line for each load, and requests that find all slots held are shown."""
    result = bench(
        *("--no-database", "--no-limits", "--prefixes", "none", "--edges", "1"),
        *("--workers", "1", "--slots", "1", "--hold-ms", "20"),
        *("--flat-out", "0", "--rate", "200", "--seconds", "0.3"),
        FASTRUN_SCHEDULER_QUEUE_PER_SLOT="2",
    )

    assert result.returncode == 0, result.stderr
    titles, line = (text.split("  ") for text in result.stdout.splitlines())
    row = dict(
        zip(
            [title.strip() for title in titles if title.strip()],
            [cell.strip() for cell in line if cell.strip()],
            strict=True,
        )
    )
    assert row["ASKED/S"] == "200"
    assert int(row["REFUSED"]) > 0
    assert int(row["QUEUED"]) > 0


def test_a_scheduler_that_cannot_start(bench):
    """One sentence says why."""
    result = bench(*SMALL, "--no-database", FASTRUN_SCHEDULER_QUEUE_PER_SLOT="many")

    assert result.returncode != 0
    assert "scheduler could not start" in result.stderr
    assert "Traceback" not in result.stderr


def test_requests_that_are_not_answered(bench):
    """What the scheduler makes of it is said: where they wait, and whether it leads."""
    impatient = (
        "import sys; from fastrun.bench.scheduler import load; load.ANSWER_S = -0.9; "
        "from fastrun.cli import main; main()"
    )
    result = bench(
        *("--no-database", "--workers", "1", "--slots", "1", "--hold-ms", "1000"),
        *("--flat-out", "0", "--rate", "100", "--seconds", "0.1"),
        program=("-c", impatient),
    )

    assert result.returncode != 0
    assert "did not end in" in result.stderr
    assert "the scheduler leads in term" in result.stderr
    assert "workers are 1 serving" in result.stderr
    assert "Traceback" not in result.stderr
