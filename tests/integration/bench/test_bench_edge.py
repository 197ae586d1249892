"""`fastrun bench edge` on a stack of its own, for a moment."""

import json
import os
import shutil
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="it needs a C compiler"),
]
SHORT = ("--repeat", "1", "--seconds", "1")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """Run it to its end."""
    cache = str(tmp_path_factory.mktemp("cache"))

    def bench(*arguments, **environ):
        return subprocess.run(
            [sys.executable, "-P", "-m", "fastrun.cli", "bench", "edge", *arguments],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": cache, **environ},
            timeout=300,
        )

    return bench


def test_figures(bench, tmp_path):
    """The edge and its peers have a record each, and the picture and the page are written."""
    plot, page = tmp_path / "plot.png", tmp_path / "page.md"
    page.write_text("Mine.\n<!-- fastrun bench edge -->\n<!-- end -->\n")
    result = bench(
        *("--scenario", "pace64", "--peer", "direct", "--peer", "relay", *SHORT, "--json"),
        *("--plot", str(plot), "--page", str(page)),
    )

    assert result.returncode == 0, result.stderr
    assert "pace64: load average" in result.stderr
    figures = json.loads(result.stdout)
    assert [each["target"] for each in figures] == ["fastrun", "direct", "relay"]
    for each in figures:
        assert each["failures"] == 0
        assert each["cpu_us"] > 0
        assert each["per_s"] > 0
        assert each["end_mib"] > 0
        assert 0 < each["first_token_p50_us"] <= each["first_token_p99_us"]
        # Each token has told when it was made.
        assert 0 < each["delay_p50_us"] <= each["delay_p99_us"]
    assert figures[0]["worker_us"] > 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert page.read_text().startswith("Mine.\n")
    assert "| pace64 | relay |" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "environ", "sentence"),
    [
        (("--scenario", "st2"), {}, "there is no scenario 'st2'; there are pace64"),
        (("--peer", "mine"), {}, "there is no peer 'mine'; there are direct"),
        (("--peer", "litellm"), {"PATH": ""}, "litellm is not installed"),
        (("--alone",), {"CC": "none", "XDG_CACHE_HOME": "/nowhere"}, "install a C compiler"),
    ],
)
def test_what_cannot_be_measured(bench, arguments, environ, sentence):
    """One sentence says why, before anything is started."""
    result = bench(*arguments, **environ)

    assert result.returncode == 1
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
