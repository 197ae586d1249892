"""SmolLM3, whose template declares tools for Hermes' calls but leaves calls out of a history.

Results it writes as any user's words. So both are written into the texts, as the model writes
calls itself.
"""

from collections.abc import Sequence
from typing import Any

from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.family import hermes
from gpu_worker.dialect.family.plain import in_words
from gpu_worker.dialect.messages import Message
from gpu_worker.dialect.profile import Profile
from gpu_worker.dialect.template_traits import Calls, traits
from gpu_worker.dialect.thinking import thoughts_of
from gpu_worker.dialect.tools import Tool


def matches(template: ChatTemplate) -> bool:
    """Tell whether a template explains Hermes' calls and writes none."""
    return hermes.matches(template) and traits(template).calls is Calls.NOWHERE


def profile(template: ChatTemplate) -> Profile:
    """Return how such a model speaks."""
    return SmolLM(
        family="smollm",
        traits=traits(template),
        calls=hermes.Hermes(),
        thoughts=thoughts_of(template.source),
    )


class SmolLM(Profile, frozen=True, kw_only=True):
    """A profile that writes calls and results into the texts."""

    def template_input(
        self, messages: Sequence[Message], tools: Sequence[Tool], effort: str | None
    ) -> tuple[Sequence[Message], dict[str, Any]]:
        """Return messages and variables as this model's template wants them."""
        return super().template_input([in_words(message) for message in messages], tools, effort)
