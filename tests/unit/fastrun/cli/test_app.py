import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fastrun.cli.app import COMMANDS, make_app


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name):
    """Every command that the help lists exists and has a help of its own."""
    result = CliRunner().invoke(make_app(name), [name, "--help"])

    assert result.exit_code == 0
    assert f"Usage: root {name}" in result.output


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
