import io
import re
import sys

import pytest

from fastrun.cli.output import columns, moment, print_columns


def test_columns():
    """Columns are as wide as their widest cell, and no line ends with blanks."""
    assert columns(("name", "n"), [("a-long-one", 1), ("b", 22)]) == [
        "NAME        N",
        "a-long-one  1",
        "b           22",
    ]


def test_right():
    """Amounts are aligned to the right."""
    assert columns(("name", "n"), [("a", 1), ("b", 22)], right=("n",)) == [
        "NAME   N",
        "a      1",
        "b     22",
    ]


def test_no_rows():
    """An empty list still shows what its columns would be."""
    assert columns(("name", "state"), []) == ["NAME  STATE"]


def test_moment():
    """Times are shown in UTC to the second."""
    assert moment(0.9) == "1970-01-01T00:00:00+00:00"


def test_cells_are_printable():
    """A name that somebody has given does not move the cursor."""
    assert columns(("name",), [("\x1b[2J",)]) == ["NAME", r"\x1b[2J"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("width", [12, 80])
def test_terminal(monkeypatch, width):
    """At a terminal a table fits its width, with all of its text, and no cell moves the cursor."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())

    print_columns(("name", "n"), [("a-very-long-name", 1), ("\x1b[2J", 22)], right=("n",))

    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())  # without what makes it bold
    assert max(map(len, shown.splitlines())) <= width
    assert "\x1b" not in shown
    together = "".join(shown.split())
    assert "22" in together
    assert ("a-very-long-name" in together) is (width == 80)


def test_pipe(capsys):
    """In a pipe each row is a line, however long."""
    print_columns(("name",), [("x" * 500,)])

    assert capsys.readouterr().out == f"NAME\n{'x' * 500}\n"
