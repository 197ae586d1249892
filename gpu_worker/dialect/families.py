"""Which family a model is of, found from its own chat template.

The rules are tried in order, and the first family that recognizes the template has it. One that no
rule recognizes still chats: its tools are described in words of ours, with Hermes' calls, which a
model without training in calls still makes where it is held to them by a grammar.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.family import (
    deepseek,
    deepseek_dsml,
    gemma,
    harmony,
    hermes,
    llama,
    mistral,
    plain,
    qwen_xml,
    smollm,
)
from gpu_worker.dialect.profile import Profile


class Family(Protocol):
    """What every module in ``family/`` has."""

    def matches(self, template: ChatTemplate) -> bool:
        """Tell whether a template belongs to a model of this family."""

    def profile(self, template: ChatTemplate) -> Profile:
        """Return how such a model speaks."""


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "deepseek": deepseek,
        "deepseek_dsml": deepseek_dsml,
        "gemma": gemma,
        "harmony": harmony,
        "qwen_xml": qwen_xml,
        "smollm": smollm,
        "hermes": hermes,
        "llama": llama,
        "mistral": mistral,
        "plain": plain,
    }
)


def find(template: ChatTemplate, family: str | None = None) -> Profile:
    """Return the profile of the model that a template belongs to.

    Args:
        template: the model's own.
        family: one of ``FAMILIES``, set by hand; None to find it out.
    """
    if family is not None:
        return FAMILIES[family].profile(template)
    found = next(each for each in FAMILIES.values() if each.matches(template))
    return found.profile(template)
