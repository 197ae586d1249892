import importlib
import re
from pathlib import Path

import pytest

from fastrun.service import queries


def test_parse():
    """A file is split at its heads, and comments before the first are dropped."""
    text = "-- intro\n\n-- name: one: Does one.\nselect 1;\n\n-- name: two: Does two.\nselect 2;\n"
    assert queries.parse(text) == {"one": "select 1", "two": "select 2"}


def test_twice():
    """A name that stands twice is refused."""
    with pytest.raises(ValueError, match="two queries are named one"):
        queries.parse("-- name: one: Does.\nselect 1;\n" * 2)


@pytest.mark.parametrize("head", ["-- name: one", "-- name: one: no full stop", "-- name: : X."])
def test_bad_head(head):
    """A head without a name and a sentence is refused."""
    with pytest.raises(ValueError, match="must read"):
        queries.parse(f"{head}\nselect 1;\n")


@pytest.mark.parametrize("package", ["auth_service", "scheduler"])
def test_all_are_used(package):
    """The stores of a service use every query of it, and no other."""
    modules = Path(importlib.import_module(package).__file__).parent.glob("*.py")
    source = "\n".join(module.read_text() for module in modules)
    assert set(re.findall(r'\bsql\["(\w+)"\]', source)) == set(queries.load(package))
