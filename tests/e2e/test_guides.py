"""Every example of the documents works as it stands, and prints what the document says."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = DOCS / "guides"
# What an operator does, each step after the one before.
STORIES = [DOCS / "operating" / "accounts.md"]
RUN_S = 60
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
LANGUAGES = ("sh", "python", "js")


@dataclass(frozen=True)
class Example:
    """A block of code, and the block of text that follows it."""

    guide: str
    number: int
    language: str
    code: str
    printed: str | None

    def __str__(self):
        return f"{self.guide}-{self.number}-{self.language}"


def examples(page):
    blocks = [match.groups() for match in BLOCK.finditer(page.read_text())]
    for number, (language, code) in enumerate(blocks):
        if language in LANGUAGES:
            after, text = (*blocks, ("", ""))[number + 1]
            printed = text if after == "text" else None
            yield Example(page.stem, number, language, code, printed)


EXAMPLES = [example for guide in sorted(GUIDES.glob("*.md")) for example in examples(guide)]


def pattern(printed: str) -> re.Pattern[str]:
    """`...` is anything, and white space does not count: guides break long lines."""
    parts = "".join(printed.split()).split("...")
    return re.compile(".*?".join(map(re.escape, parts)), re.DOTALL)


@pytest.fixture
def run(tmp_path, stack, request):
    operator = {
        "FASTRUN_DATA": stack.ready["data"],
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def run(example):
        if example.language == "js":
            module = tmp_path / "example.mjs"
            module.write_text(example.code)
            return request.getfixturevalue("node")(module, stack.environ)
        command = {
            "sh": ["sh", "-euc", example.code],
            "python": [sys.executable, "-c", example.code],
        }
        return subprocess.run(
            command[example.language],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, **stack.environ, **operator},
            timeout=RUN_S,
        )

    return run


def check(example, done):
    assert done.returncode == 0, done.stderr
    assert example.printed is not None, f"the guide does not say what {example} prints"
    printed = "".join(done.stdout.split())
    assert pattern(example.printed).fullmatch(printed), done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_example(run, example):
    """An example ends well, and its output is what stands below it."""
    check(example, run(example))


@pytest.mark.parametrize("page", STORIES, ids=lambda page: page.stem)
def test_story(run, page):
    """What an operator is told to do works from the beginning to the end."""
    for example in examples(page):
        check(example, run(example))


def test_every_language_is_shown():
    """No guide is left without examples that a test has run."""
    guides = {guide.stem for guide in GUIDES.glob("*.md")} - {"README"}

    assert {example.guide for example in EXAMPLES} == guides
    assert {example.language for example in EXAMPLES} == set(LANGUAGES)
