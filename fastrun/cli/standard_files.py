"""The files that a command is called with: one may be closed, full, or read by nobody any more."""

import os
import sys


def open_closed() -> None:
    """Open those that are closed: whatever was opened next would take their place."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode))


def give_up_output() -> None:
    """Write nothing more: Python would try what it still holds again, and end with a trace."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
