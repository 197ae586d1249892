"""The files that a command is called with: closed, full, unread, or of another encoding maybe."""

import io
import os
import sys

from fastrun.cli.errors import CommandError


def prepare() -> None:
    """Let what cannot be written be shown as its escape, and open those that are closed.

    Whatever was opened next would take their place.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def give_up_output() -> None:
    """Write nothing more: Python would try what it still holds again, and end with a trace."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def read_input() -> str:
    """Read all that is piped in.

    Raises:
        CommandError: it is no text.
    """
    try:
        text = sys.stdin.read()
        text.encode()  # Python lets through what it cannot decode, in some locales
    except UnicodeError as error:
        raise CommandError(f"what is piped in is not text in {sys.stdin.encoding}") from error
    return text
