"""Gemma 4: calls and thoughts between control tokens, arguments in a notation of its own.

Checked against the chat templates of google/gemma-4-31B-it (68abe48) and google/gemma-4-E2B-it
(4742fe8, the first one, and 8995379), Google's description of the format
(ai.google.dev/gemma/docs/core/prompt-formatting-gemma4), and what other servers' trackers report of
its answers.
"""

from collections.abc import Sequence
from typing import Any

from gpu_worker.dialect.chat_template import ChatTemplate, TemplateError
from gpu_worker.dialect.family.gemma_declarations import declaration
from gpu_worker.dialect.family.gemma_grammar import call_grammar
from gpu_worker.dialect.family.gemma_history import history
from gpu_worker.dialect.family.gemma_reader import BARE_OPENING, MARKERS, OPENING, GemmaReader
from gpu_worker.dialect.messages import Message, within
from gpu_worker.dialect.profile import Profile
from gpu_worker.dialect.template_traits import ASSISTANT, called, traits
from gpu_worker.dialect.thinking import ThoughtMarkers
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine import grammar
from gpu_worker.engine.grammar import Grammar

THOUGHTS = ThoughtMarkers(
    begin="<|channel>", end="<channel|>", label="thought", are_control_tokens=True
)
# A turn ends, or results of tools are to follow. Both are in the models' generation_config.
STOP_TOKENS = ("<turn|>", "<|tool_response>")


def matches(template: ChatTemplate) -> bool:
    """Tell whether a template reads tools and writes Gemma's calls."""
    return "tools" in template.reads and f"{OPENING}{BARE_OPENING}" in template.source


def profile(template: ChatTemplate) -> Profile:
    """Return how such a model speaks."""
    return Gemma(
        family="gemma",
        traits=traits(template),
        calls=GemmaCalls(),
        thoughts=THOUGHTS,
        stop_tokens=STOP_TOKENS,
        continues_turns=_continues_turns(template),
    )


def _continues_turns(template: ChatTemplate) -> bool:
    """Tell whether two messages of the model in a row are one turn; since July 2026 they are."""
    user, *call = called({})
    try:
        written = template.render([user, ASSISTANT, *call])
    except TemplateError:
        return False
    return f"{ASSISTANT['content']}{OPENING}" in written


class Gemma(Profile, frozen=True, kw_only=True):
    """A profile whose templates want results, arguments and declarations in their own shape."""

    continues_turns: bool = True

    def template_input(
        self, messages: Sequence[Message], tools: Sequence[Tool], effort: str | None
    ) -> tuple[Sequence[Message], dict[str, Any]]:
        """Return messages and variables as this model's template wants them."""
        variables = self.switches(effort)
        if tools:
            variables["tools"] = [declaration(tool) for tool in tools]
        return within(self.traits, history(messages, splits=self.continues_turns)), variables


class GemmaCalls:
    """The format as a whole."""

    # The markers that open nothing are never shown either.
    openings = MARKERS
    bare_opening = BARE_OPENING
    markers = MARKERS
    are_control_tokens = True

    def reader(self, opening: str, tools: Sequence[Tool]) -> GemmaReader:
        """Return what reads after an opening; calls of other tools than these are no calls."""
        return GemmaReader(opening, tools)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> Grammar:
        """Allow one call of any of these tools, or several, and nothing else."""
        calls = tuple(map(call_grammar, tools))
        one = calls[0] if len(calls) == 1 else grammar.Choice(calls)
        return grammar.Repeat(one, 1, None) if several else one
