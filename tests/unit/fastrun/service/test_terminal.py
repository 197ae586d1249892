import pytest

from fastrun.service.terminal import printable, printable_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("größe 日本語 😀", "größe 日本語 😀"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("one\nedge: error: forged\r", r"one\nedge: error: forged\r"),
        ("\x9b2J\x00\x7f", r"\x9b2J\x00\x7f"),
        ("left\u202eright", r"left\u202eright"),
        ("\udc80", r"\udc80"),
    ],
)
def test_printable(text, shown):
    """What would move a cursor, end a line or turn the direction of writing is shown, not done."""
    assert printable(text) == shown


def test_lines_stay():
    """Text of several lines keeps them, and nothing else that is not plainly visible."""
    assert printable_lines("Traceback\n  \x1b[2J\n") == "Traceback\n  \\x1b[2J\n"
