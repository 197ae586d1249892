"""What a chat template can take, found by rendering small conversations with it."""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

import msgspec

from gpu_worker.dialect.chat_template import ChatTemplate, TemplateError

FIRST, LATER = "fastrun-probe-first", "fastrun-probe-later"
USER = {"role": "user", "content": "fastrun-probe-user"}
ASSISTANT = {"role": "assistant", "content": "fastrun-probe-assistant"}


class Systems(Enum):
    """Where a template takes system messages."""

    EVERYWHERE = auto()
    FIRST = auto()  # one, before all others
    NOWHERE = auto()


class Traits(msgspec.Struct, frozen=True):
    """What messages have to look like for a template to write all of them."""

    systems: Systems = Systems.EVERYWHERE
    arguments_are_text: bool = False  # of calls in history: JSON text, not a mapping


def traits(template: ChatTemplate) -> Traits:
    """Try a template out."""
    return Traits(systems=_systems(template), arguments_are_text=_arguments_are_text(template))


def _systems(template: ChatTemplate) -> Systems:
    if FIRST not in _rendered(template, [_system(FIRST), USER]):
        # Unless it refuses any such conversation: then nothing was found out.
        return Systems.NOWHERE if _rendered(template, [USER]) else Systems.EVERYWHERE
    both = _rendered(template, [_system(FIRST), USER, ASSISTANT, _system(LATER), USER])
    return Systems.EVERYWHERE if FIRST in both and LATER in both else Systems.FIRST


def _arguments_are_text(template: ChatTemplate) -> bool:
    mapping: Mapping[str, Any] = {"fastrun-probe": FIRST}
    as_text = f'{{"fastrun-probe": "{FIRST}"}}'
    written = _rendered(template, called(mapping))
    # Python's own way to print a mapping is no model's.
    if FIRST in written and str(mapping) not in written:
        return False
    return FIRST in _rendered(template, called(as_text))


def called(arguments: object) -> Sequence[Mapping[str, Any]]:
    """Return a conversation with a call of the function ``probe``."""
    function = {"name": "probe", "arguments": arguments}
    call = {"id": "probe1234", "type": "function", "function": function}
    result = {"role": "tool", "content": "probe", "tool_call_id": "probe1234", "name": "probe"}
    return [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, result]


def _system(text: str) -> Mapping[str, Any]:
    return {"role": "system", "content": text}


def _rendered(template: ChatTemplate, messages: Sequence[Mapping[str, Any]]) -> str:
    try:
        return template.render(messages)
    except TemplateError:
        return ""
