import io

from fastrun.cli.chat_api import Piece
from fastrun.cli.chat_screen import Screen

ANSWER = (Piece(reasoning="Hm."), Piece(content="Yes\n"), Piece(content="\x1b[2J!"), Piece())


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_terminal():
    """At a terminal thoughts are dimmed, and nothing that is said moves the cursor."""
    stream = Terminal()
    Screen(stream).show(ANSWER)

    assert stream.getvalue() == "\x1b[2mHm.\x1b[0m\n\nYes\n\\x1b[2J!\n"


def test_file():
    """In a file there is what was said, as it is, and no thought."""
    stream = io.StringIO()
    answer = Screen(stream).show(ANSWER)

    assert stream.getvalue() == "Yes\n\x1b[2J!\n"
    assert answer.reasoning == "Hm."


def test_stopped_while_it_thinks():
    """Whatever follows an answer that was stopped is not dimmed."""
    stream = Terminal()
    screen = Screen(stream)

    def stopped():
        yield Piece(reasoning="Hm")
        raise KeyboardInterrupt

    try:
        screen.show(stopped())
    except KeyboardInterrupt:
        screen.stop()
    assert stream.getvalue() == "\x1b[2mHm\x1b[0m\n"


def test_cut_off(capsys):
    """An answer that was cut off says so, apart from it."""
    Screen(Terminal()).show([Piece(content="Yes"), Piece(finish="length")])

    assert "cut off" in capsys.readouterr().err
