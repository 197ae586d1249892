"""What stands before each message in harmony: from and to whom it is, and on which channel.

``assistant<|channel|>commentary to=functions.NAME <|constrain|>json`` is one; the recipient may
stand in front of the channel, and the type may be missing. Models get headers wrong, too, the
smaller one in some 4 % of its answers. So what can be read is read, and nothing is an error.
"""

import re
from collections.abc import Collection
from enum import Enum, auto

import msgspec

START, END, MESSAGE = "<|start|>", "<|end|>", "<|message|>"
CHANNEL, CONSTRAIN = "<|channel|>", "<|constrain|>"
CALL, RETURN = "<|call|>", "<|return|>"
MARKERS = (START, END, MESSAGE, CHANNEL, CONSTRAIN, CALL, RETURN)

FUNCTIONS = "functions."
# Not a tool: whoever reads the answer. The smaller model likes to address itself.
_READERS = frozenset({"", "assistant", "user", "all"})

_MARKER = re.compile("|".join(map(re.escape, MARKERS)))
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(analysis|commentary|final)")
_BARE_CHANNEL = re.compile("analysis|commentary|final")
_RECIPIENT = re.compile(r"\s?(?:\bto=|to=(?=functions\.))([^\s<{]*)")
_ROLE = re.compile(r"\s*(assistant|(?:user|system|developer|tool)\b|functions\.[^\s<]*)")
_TYPE = re.compile(rf"\s?{re.escape(CONSTRAIN)}\s*\w*")
# Some write "to=functions.shelljson".
_GLUED_TYPE = re.compile("(?:json|code)$")


class Kind(Enum):
    """What a message is to whoever asked."""

    THOUGHT = auto()
    CONTENT = auto()
    CALL = auto()


class Header(msgspec.Struct, frozen=True):
    """A header as far as it can be read."""

    channel: str = ""  # empty if it names none that exists
    function: str = ""  # that is called; empty for none of those that may be
    is_addressed: bool = False  # to a tool, known or not, or it is not the assistant's
    rest: str = ""  # what belongs to no header, and so to a text

    @property
    def kind(self) -> Kind:
        """What the message is. What goes to tools that nobody has offered is no answer."""
        if self.function:
            return Kind.CALL
        if self.is_addressed or self.channel == "analysis":
            return Kind.THOUGHT
        return Kind.CONTENT


def read(
    text: str, functions: Collection[str], *, has_role: bool = False, is_whole: bool = False
) -> Header:
    """Read a header.

    Args:
        text: of it, without the marker that ends it.
        functions: names of those that may be called.
        has_role: it begins with whose message it is; at the beginning of an answer the prompt has
            said so.
        is_whole: the marker that has to end it does, so that all of it is a header.
    """
    role = _ROLE.match(text) if has_role else None
    body = text[role.end() :] if role else text
    recipient = _RECIPIENT.search(body)
    to = recipient[1] if recipient else ""
    from_others = role is not None and role[1] != "assistant"
    channel = _CHANNEL.search(text)  # of several the first counts
    bare = _BARE_CHANNEL.search(body) if is_whole or recipient else None
    rest = _CHANNEL.sub("", _TYPE.sub("", _RECIPIENT.sub("", body, 1), 1))
    return Header(
        channel=channel[1] if channel else bare[0] if bare else "",
        function="" if from_others else _function(to, functions),
        is_addressed=from_others or to not in _READERS,
        rest=_MARKER.sub("", rest),
    )


def _function(recipient: str, functions: Collection[str]) -> str:
    for name in (recipient, _GLUED_TYPE.sub("", recipient)):
        short = name.removeprefix(FUNCTIONS)
        if short in functions:
            return short
    return ""
