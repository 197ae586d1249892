"""The `fastrun` command: every part of it has an example, a help and JSON, and stands on the page."""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastrun.cli.app import COMMANDS, make_app

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs/operating/commands.py"
# They become the worker.
SHOW_NOTHING = {("worker", "join"), ("worker", "run")}


def page():
    spec = importlib.util.spec_from_file_location("commands_page", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


LEAVES = list(page().leaves())


def test_the_page_of_commands_is_what_the_commands_say():
    """Every command stands on the page as it is; run the script beside it if not."""
    script = page()
    assert script.PAGE.read_text(encoding="utf-8") == script.render()


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.name)
def test_example(leaf):
    """The help of each command has an example, with which nothing is wrong."""
    words = shlex.split(leaf.example)
    assert words[: len(leaf.path) + 1] == ["fastrun", *leaf.path]
    with leaf.command.make_context(leaf.name, words[len(leaf.path) + 1 :]):
        pass


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.name)
def test_options(leaf):
    """Each command and option has a help, and what is shown can be had as JSON."""
    assert leaf.command.help
    options = leaf.options()
    assert all(meaning for _, meaning in options)
    assert any(name == "--json" for name, _ in options) is (leaf.path not in SHOW_NOTHING)


@pytest.mark.parametrize("group", [None, *COMMANDS])
def test_sentences_of_a_list_of_commands(group):
    """Where commands are listed, what each does is a whole sentence, also in 80 columns."""
    told = [] if group is None else [group]
    helped = CliRunner().invoke(make_app(group), [*told, "--help"], env={"COLUMNS": "80"})
    _, _, commands = helped.stdout.partition("Commands:\n")
    listed = [line for line in commands.splitlines() if line and not line.startswith("  Example:")]
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


COMPLETED = """
eval "$(fastrun --show-completion bash)"
COMP_WORDS=($TYPED "$LAST"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_fastrun_completion fastrun
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs a bash")
@pytest.mark.parametrize(
    ("typed", "last", "completed"),
    [
        ("fastrun", "acc", ["account"]),
        ("fastrun account", "li", ["limits", "list"]),
        ("fastrun account list", "--st", ["--state"]),
        ("fastrun account list --state", "", ["pending", "approved", "suspended", "closed"]),
        ("fastrun fleet --context", "sta", ["staging"]),
    ],
)
def test_completion(tmp_path, typed, last, completed):
    """A shell completes commands, options, their values and names of contexts."""
    contexts = tmp_path / "fastrun" / "contexts"
    contexts.mkdir(parents=True)
    (contexts / "staging.toml").touch()
    done = subprocess.run(
        ["bash", "-c", COMPLETED],
        check=True,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(tmp_path),
            "TYPED": typed,
            "LAST": last,
        },
    )
    assert done.stdout.split() == completed
