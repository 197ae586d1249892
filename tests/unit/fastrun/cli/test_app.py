import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fastrun.cli.app import COMMANDS, make_app


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name):
    """Every command that the help lists exists and has a help of its own, with an example."""
    result = CliRunner().invoke(make_app(name), [name, "--help"])

    assert result.exit_code == 0
    assert f"Usage: root {name}" in result.output
    assert f"Example: fastrun {name}" in " ".join(result.output.split())


EXAMPLES = {
    "account": ("create", "approve", "suspend", "close", "limits", "list"),
    "key": ("issue", "rotate", "revoke", "limits", "list"),
    "usage": ("", "recompute"),
    "price": ("set", "list"),
    "audit": ("",),
}


@pytest.mark.parametrize(
    "command",
    [(name, each) for name, commands in EXAMPLES.items() for each in commands],
    ids=" ".join,
)
def test_examples(command):
    """The help of a command shows an example, whose options it has."""
    words = [word for word in command if word]
    run = CliRunner().invoke
    text = " ".join(run(make_app(words[0]), [*words, "--help"]).output.split())
    _, _, example = text.partition("Example: fastrun ")

    assert example.split()[: len(words)] == words
    # Nothing is wrong with it: it gets as far as asking.
    result = run(make_app(words[0]), [*example.split(), "--auth", "127.0.0.1:1"])
    assert "nothing answers at 127.0.0.1:1" in str(result.exception)


def test_usage_error():
    """A wrong call ends with status 2 and one line that says what is wrong."""
    result = CliRunner().invoke(make_app("up"), ["up", "--port", "many"])

    assert result.exit_code == 2
    assert "Error: Invalid value for '--port'" in result.stderr


def test_help_is_light():
    """The list of commands appears without loading gRPC or any service."""
    program = (
        "import sys; from fastrun.cli.app import make_app; make_app(None); "
        "print([name for name in ('grpc', 'aiohttp', 'asyncio', 'rich') if name in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    assert done.stdout == "[]\n"
