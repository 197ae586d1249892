from fastrun.cli.output import columns, moment


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
