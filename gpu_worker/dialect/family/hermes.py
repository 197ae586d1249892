"""Calls as NousResearch's Hermes, Qwen 2.5 and 3 and many ChatML models write them.

The tag holds JSON with a name and arguments; there is one tag for each call. Checked against the
templates of Qwen 3 (``tests/templates/README.md``); SmolLM2's recipe writes a list into one tag.
"""

import json
import re
from collections.abc import Sequence

from gpu_worker.dialect.chat_template import ChatTemplate, TemplateError
from gpu_worker.dialect.family.hermes_reader import BROKEN_END, CLOSING, OPENING, HermesReader
from gpu_worker.dialect.profile import Profile
from gpu_worker.dialect.template_traits import called, traits
from gpu_worker.dialect.thinking import thoughts_of
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine import grammar
from gpu_worker.engine.grammar import Grammar

_CALL = re.compile(rf"{OPENING}\s*\[?\s*{{\s*[\"']")


def matches(template: ChatTemplate) -> bool:
    """Tell whether a template reads tools, and writes or explains Hermes' calls.

    The tag alone says nothing: other formats stand between the same tags.
    """
    if "tools" not in template.reads or OPENING not in template.source:
        return False
    try:
        prompt = template.render(called({}), tools=[Tool("probe").as_template_value()])
    except TemplateError:
        return True
    return _CALL.search(prompt) is not None


def profile(template: ChatTemplate) -> Profile:
    """Return how such a model speaks."""
    return Profile(
        family="hermes",
        traits=traits(template),
        calls=Hermes(),
        thoughts=thoughts_of(template.source),
    ).tried_out(template)


class Hermes:
    """The format as a whole."""

    openings = (OPENING,)
    bare_opening = ""
    markers = (OPENING, CLOSING)
    are_control_tokens = False

    def reader(self, opening: str, tools: Sequence[Tool]) -> HermesReader:
        """Return what reads after the tag; calls of other tools than these are no calls."""
        del opening  # there is one
        return HermesReader(frozenset(tool.name for tool in tools))

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> Grammar:
        """Allow one call of any of these tools, or several, and nothing else."""
        calls = tuple(_call_grammar(tool) for tool in tools)
        one = calls[0] if len(calls) == 1 else grammar.Choice(calls)
        if not several:
            return one
        more = grammar.Sequence((grammar.Literal("\n"), one))
        return grammar.Sequence((one, grammar.Repeat(more, 0, None)))


def _call_grammar(tool: Tool) -> Grammar:
    return grammar.Sequence(
        (
            grammar.Literal(
                f'{OPENING}\n{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": '
            ),
            grammar.Json(json.dumps(tool.arguments_schema(), ensure_ascii=False)),
            grammar.Literal("}" + BROKEN_END),
        )
    )
