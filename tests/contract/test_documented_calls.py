"""Each call of `fastrun` and each variable that a page shows is one that there is."""

import importlib.util
import re
import shlex
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs/operating/commands.py"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
OPERATORS = ";&|<>"
VARIABLE = re.compile(r"\bFASTRUN_[A-Z0-9_]*[A-Z0-9]\b")


def leaves():
    spec = importlib.util.spec_from_file_location("commands_page", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return {leaf.path: leaf.command for leaf in script.leaves()}


COMMANDS = leaves()


def shown():
    """Each page that calls `fastrun` in its blocks of shell, with the words of each call."""
    for page in PAGES:
        for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            if language in ("", "sh"):
                for line in block.replace("\\\n", " ").splitlines():
                    yield from ((page.relative_to(ROOT), call) for call in calls(line))


def calls(line):
    """What follows `fastrun`, here or in a container of compose, up to the end of the command."""
    substituted = re.findall(r"\$\((.*?)\)", line)
    for part in substituted or [line.removeprefix("$ ")]:
        shell = shlex.shlex(part, posix=True, punctuation_chars=OPERATORS)
        shell.whitespace_split = True
        try:
            words = list(shell)
        except ValueError:  # what is printed may have a quotation mark that is none
            continue
        for at, word in enumerate(words):
            inside = {"compose", "sudo"}.intersection(words[:at])
            if (word.rpartition("/")[2] == "fastrun" and (at == 0 or inside)) or (
                word == "operator" and inside
            ):
                call = list(takewhile(lambda each: each[0] not in OPERATORS, words[at + 1 :]))
                if call:
                    yield call
                break


@pytest.mark.parametrize(
    ("page", "call"), [pytest.param(*each, id=f"{each[0]}:{' '.join(each[1])}") for each in shown()]
)
def test_call(page, call, tmp_path, monkeypatch):
    """The command is there, and takes these arguments and options."""
    monkeypatch.chdir(tmp_path)
    # What pages name, and some commands look for.
    (tmp_path / "FILE").touch()
    (tmp_path / "peers").mkdir()
    length = max((n for n in range(len(call) + 1) if tuple(call[:n]) in COMMANDS), default=0)
    assert length, f"{page}: there is no fastrun {' '.join(call)}"
    command = COMMANDS[tuple(call[:length])]
    with command.make_context(" ".join(call[:length]), call[length:]):
        pass


def test_variables():
    """Each variable of ours that a page names is a setting, or is read by something here."""
    read = [ROOT / "compose.yaml", ROOT / "docs/operating/configuration.md"]
    for folder in ("fastrun", "deploy", "tests"):
        read += [each for kind in ("py", "yaml") for each in (ROOT / folder).rglob(f"*.{kind}")]
    known = {name for each in read for name in VARIABLE.findall(each.read_text("utf-8"))}
    named = {(page, name) for page in PAGES for name in VARIABLE.findall(page.read_text("utf-8"))}
    assert [f"{page}: {name}" for page, name in sorted(named) if name not in known] == []
