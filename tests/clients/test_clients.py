"""What clients that people use get from a whole stack: the same from each.

Their calls are scripts, which run as those of users do: with a client's own warnings and versions.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RUN_S = 300
# Clients whose openai is older than ours have an environment of their own.
OPENAI2 = Path(sys.prefix) / "openai2" / "bin" / "python"

CLIENTS = {
    "openai_python": sys.executable,
    "pydantic_ai_sdk": sys.executable,
    "llm_cli": sys.executable,
    "litellm_sdk": OPENAI2,
    "instructor_sdk": OPENAI2,
    "llama_index_sdk": OPENAI2,
    "openai-node": None,
    "ai-sdk": None,
}
HELLO = "Hello! How can I help you today?"


@pytest.fixture(scope="module")
def results(stack, request):
    """Run the script of a client, once."""

    def run_python(name, python):
        assert Path(python).exists(), f"{python} is missing: `make test` installs it"
        return subprocess.run(
            [python, str(HERE / "python" / f"{name}.py")],
            check=False,
            capture_output=True,
            text=True,
            # Else litellm begins by asking the internet for prices.
            env={**os.environ, **stack.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            timeout=RUN_S,
        )

    @cache
    def results(name):
        if python := CLIENTS[name]:
            done = run_python(name, python)
        else:
            node = request.getfixturevalue("node")
            done = node(HERE / "js" / f"{name}.mjs", stack.environ)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return results


@pytest.mark.parametrize("client", CLIENTS)
def test_plain(results, client):
    """A client gets a plain answer."""
    assert results(client)["plain"] == HELLO


@pytest.mark.parametrize("client", CLIENTS)
def test_streamed(results, client):
    """A client gets the same answer as a stream, in pieces."""
    pieces = results(client)["streamed"]

    assert "".join(pieces) == HELLO
    assert len(pieces) > 1 or client == "llm_cli"  # its output is one text


@pytest.mark.parametrize("client", CLIENTS)
def test_tool(results, client):
    """A client gets a call of a function, with its arguments."""
    assert results(client)["tool"] == ["get_weather", {"city": "Rome"}]


@pytest.mark.parametrize("client", CLIENTS)
def test_structured(results, client):
    """A client gets an answer that fits its schema."""
    assert results(client)["structured"] == {"name": "Alice", "age": 31, "city": "Oslo"}
