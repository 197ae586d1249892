import json

import pytest
import structlog
from typer.testing import CliRunner

from fastrun.cli.app import make_app


@pytest.fixture(autouse=True)
def _logs():
    yield
    structlog.reset_defaults()


@pytest.fixture
def bench(tmp_path):
    """Simulate a small fleet over a small trace, or over what is written in its place."""
    trace = tmp_path / "small.jsonl"
    lines = [
        {
            "timestamp": 90 * at,
            "input_length": 1536,
            "output_length": 40,
            "hash_ids": [0, at % 9, at],
        }
        for at in range(400)
    ]

    def bench(*arguments, text=None):
        trace.write_text(text or "\n".join(map(json.dumps, lines)))
        command = ["bench", "placement", "--trace", str(trace), *arguments]
        return CliRunner().invoke(make_app("bench"), command)

    return bench


def test_json(bench):
    """For programs there is a record for each policy at each load."""
    result = bench(
        "--workers", "1", "--load", "0.5", "--policy", "smg", "--policy", "fastrun", "--json"
    )

    reports = json.loads(result.stdout)
    assert [(each["policy"], each["load"], each["requests"]) for each in reports] == [
        ("smg", 0.5, 400),
        ("fastrun", 0.5, 400),
    ]


def test_table(bench):
    """People get a line for each, and a half of a trace where they ask for it."""
    result = bench("--workers", "1", "--load", "0.5", "--policy", "round_robin", "--part", "second")

    title, line = result.stdout.splitlines()
    assert title.split()[:3] == ["REQUESTS", "WORKERS", "LOAD"]
    assert line.split()[:4] == ["small", "1", "0.5", "round_robin"]


def test_unknown_policy(bench):
    """A policy that is none is refused with the names of all."""
    result = bench("--policy", "best")

    assert "there is no policy 'best'; there are fastrun, " in str(result.exception)


def test_bad_trace(bench):
    """A trace that is none is refused with the line where it goes wrong."""
    result = bench(text="{}")

    assert "small.jsonl: line 1: " in str(result.exception)


def test_too_few(bench):
    """A fleet that a trace cannot fill is not compared by loads that mean nothing."""
    result = bench("--workers", "100")

    assert "400 requests do not fill 100 workers" in str(result.exception)
