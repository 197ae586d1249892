"""What a look at one thing has come to."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, and will not for ever."""
    WRONG = "wrong"
    SKIPPED = "skipped"
    """It could not be looked at, or is not needed here."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, and one sentence that says what is wrong with it and what to do."""

    check: str
    state: State
    says: str


def ok(check: str, says: str) -> Finding:
    """All is well with it."""
    return Finding(check, State.OK, says)


def warning(check: str, says: str) -> Finding:
    """It works, and somebody should look after it."""
    return Finding(check, State.WARNING, says)


def wrong(check: str, says: str) -> Finding:
    """Something does not work."""
    return Finding(check, State.WRONG, says)


def skipped(check: str, says: str) -> Finding:
    """Nobody can say, or nobody needs to know."""
    return Finding(check, State.SKIPPED, says)
