"""What a chat template can take, found by rendering small conversations with it."""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

import msgspec

from gpu_worker.dialect.chat_template import ChatTemplate, TemplateError

Message = Mapping[str, Any]

FIRST, LATER = "fastrun-probe-first", "fastrun-probe-later"
USER: Message = {"role": "user", "content": "fastrun-probe-user"}
ASSISTANT: Message = {"role": "assistant", "content": "fastrun-probe-assistant"}
IDS = ("probe1234", "probe5678")  # as long as Mistral's templates want them


class Systems(Enum):
    """Where a template takes system messages."""

    EVERYWHERE = auto()
    FIRST = auto()  # one, before all others
    NOWHERE = auto()


class Calls(Enum):
    """How a template writes the calls of a history."""

    TOGETHER = auto()
    ALONE = auto()  # one in each message
    NOWHERE = auto()


class Traits(msgspec.Struct, frozen=True):
    """What messages have to look like for a template to write all of them."""

    systems: Systems = Systems.EVERYWHERE
    calls: Calls = Calls.TOGETHER
    calls_have_content: bool = True  # what is said before a call may stand in its message
    arguments_are_text: bool = False  # of calls: JSON text, not a mapping
    turns_alternate: bool = False  # nobody may speak twice in a row
    contents_are_parts: bool = False  # lists of texts, as where there may be images among them


def traits(template: ChatTemplate) -> Traits:
    """Try a template out. A form that it refuses like any other has not been found wanting."""
    probe = _Probe(template)
    arguments_are_text = _arguments_are_text(probe)
    calls = _calls(probe, text=arguments_are_text)
    return Traits(
        systems=_systems(probe),
        calls=calls,
        calls_have_content=_calls_have_content(probe, text=arguments_are_text),
        arguments_are_text=arguments_are_text,
        turns_alternate=bool(probe.write([USER])) and not probe.write([USER, USER]),
        contents_are_parts=probe.contents_are_parts,
    )


def called(*arguments: object, content: str = "") -> Sequence[Message]:
    """Return a conversation with calls of the function ``probe``, and their results."""
    calls = [
        {"id": number, "type": "function", "function": {"name": "probe", "arguments": value}}
        for number, value in zip(IDS, arguments, strict=False)
    ]
    results = [
        {"role": "tool", "content": "probe", "tool_call_id": call["id"], "name": "probe"}
        for call in calls
    ]
    return [USER, {"role": "assistant", "content": content, "tool_calls": calls}, *results]


def with_parts(message: Message) -> Message:
    """Return a message whose content is a list, with its text as the only part."""
    if not isinstance(message.get("content"), str):
        return message
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


class _Probe:
    """A template that is tried out."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self.contents_are_parts = False
        if USER["content"] not in self.write([USER]):
            self.contents_are_parts = True
            self.contents_are_parts = USER["content"] in self.write([USER])

    def write(self, messages: Sequence[Message]) -> str:
        """Return what the template makes of messages; nothing if it refuses them."""
        if self.contents_are_parts:
            messages = [with_parts(message) for message in messages]
        try:
            return self._template.render(messages)
        except TemplateError:
            return ""

    def writes(self, messages: Sequence[Message], *texts: str) -> bool:
        """Tell whether all these texts of messages are written."""
        written = self.write(messages)
        return all(text in written for text in texts)


def _systems(probe: _Probe) -> Systems:
    first, later = ({"role": "system", "content": text} for text in (FIRST, LATER))
    if not probe.writes([first, USER], FIRST):
        return Systems.NOWHERE if probe.write([USER]) else Systems.EVERYWHERE
    several = ([first, USER, ASSISTANT, later, USER], [first, later, USER])
    everywhere = all(probe.writes(messages, FIRST, LATER) for messages in several)
    everywhere = everywhere and probe.writes([first], FIRST)
    return Systems.EVERYWHERE if everywhere else Systems.FIRST


def _arguments(text: str, *, as_text: bool) -> object:
    return f'{{"fastrun-probe": "{text}"}}' if as_text else {"fastrun-probe": text}


def _arguments_are_text(probe: _Probe) -> bool:
    mapping = _arguments(FIRST, as_text=False)
    written = probe.write(called(mapping))
    # Python's own way to print a mapping is no model's.
    if FIRST in written and str(mapping) not in written:
        return False
    return probe.writes(called(_arguments(FIRST, as_text=True)), FIRST)


def _calls(probe: _Probe, *, text: bool) -> Calls:
    first, later = (_arguments(each, as_text=text) for each in (FIRST, LATER))
    if not probe.writes(called(first), FIRST):
        return Calls.NOWHERE if probe.write(called(first)) else Calls.TOGETHER
    return Calls.TOGETHER if probe.writes(called(first, later), FIRST, LATER) else Calls.ALONE


def _calls_have_content(probe: _Probe, *, text: bool) -> bool:
    arguments = _arguments(FIRST, as_text=text)
    if probe.writes(called(arguments, content=LATER), LATER):
        return True
    return not probe.writes(called(arguments), FIRST)
