"""Where a model thinks: what stands around a thought, and where an answer begins."""

from enum import Enum, auto

import msgspec


class Thinking(Enum):
    """Where an answer begins, as the end of the prompt has it."""

    NO = auto()  # the prompt closed the thought, or the model knows none
    OPEN = auto()  # the prompt opened it
    MAYBE = auto()  # the model opens it, or not


class ThoughtMarkers(msgspec.Struct, frozen=True):
    """What stands around a thought."""

    begin: str
    end: str
    label: str = ""  # what models write between the begin marker and the thought
    after: str = ""  # what models write between the end marker and the answer
    # Control tokens, which no text spells: they count wherever they stand, and are never shown.
    are_control_tokens: bool = False


THINK_TAGS = ThoughtMarkers(begin="<think>", end="</think>", after="\n\n")


def thoughts_of(source: str) -> ThoughtMarkers | None:
    """Return the tags of a template that writes them; a model without does not think."""
    return THINK_TAGS if THINK_TAGS.begin in source else None
