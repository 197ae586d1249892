"""The page of logs has every event that the services log, at its level."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/operating/logs.md"
FOLDERS = {
    "edge": "edge",
    "auth_service": "auth_service",
    "scheduler": "scheduler",
    "gpu_worker": "gpu_worker",
    "Every service": "fastrun/service",
}
LEVELS = {name: name for name in ("debug", "info", "warning", "error")} | {"exception": "error"}


def logged(folder):
    """Event and level of every line that the code below a folder can write."""
    return {
        (each.value, LEVELS[call.func.attr])
        for path in (ROOT / folder).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        if isinstance(call.func, ast.Attribute)
        if ast.unparse(call.func.value) == "log"
        for each in ast.walk(call.args[0])
        if isinstance(each, ast.Constant)
    }


def told(heading):
    """Event and level of every line of a table of the page."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return {
        (event, level)
        for events, level in re.findall(r"^\| (`.+?) \| (\w+) \|", section, re.MULTILINE)
        for event in re.findall(r"`(\w+)`", events)
    }


def test_every_event_stands_on_the_page():
    """What a service logs is explained under its name, and nothing is that it does not log."""
    for heading, folder in FOLDERS.items():
        assert told(heading) == logged(folder), heading
