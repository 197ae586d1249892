"""Qwen3-Coder and Qwen 3.5, 3.6 and 3.8, whose calls are tags, with texts between them as they are.

Models write calls into thoughts that they have not ended, which ends the thought; a tag that is
only mentioned does not. Checked against the templates that Qwen publishes
(``tests/templates/README.md``); the templates of NVIDIA's Nemotron 3 and StepFun's Step 3.5 write
the same calls and are recognized as well.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_worker.dialect.argument_grammar import Argument, arguments
from gpu_worker.dialect.chat_template import ChatTemplate, TemplateError
from gpu_worker.dialect.family.qwen_xml_reader import (
    CALL,
    CALL_END,
    FUNCTION,
    FUNCTION_END,
    PARAMETER,
    PARAMETER_END,
    QwenXmlReader,
)
from gpu_worker.dialect.messages import Message
from gpu_worker.dialect.profile import Profile
from gpu_worker.dialect.template_traits import USER, called, traits
from gpu_worker.dialect.thinking import thoughts_of
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.grammar import Choice, Grammar, Literal, Repeat
from gpu_worker.engine.grammar import Sequence as InTurn

_CALL = re.compile(rf"{CALL}\s*{FUNCTION}probe>")


def matches(template: ChatTemplate) -> bool:
    """Tell whether a template reads tools and writes calls into the history as these models do."""
    if "tools" not in template.reads or FUNCTION not in template.source:
        return False
    try:
        return _CALL.search(template.render(called({}))) is not None
    except TemplateError:
        return False


def profile(template: ChatTemplate) -> Profile:
    """Return how such a model speaks."""
    return QwenXml(
        family="qwen_xml",
        traits=traits(template),
        calls=QwenXmlCalls(),
        thoughts=thoughts_of(template.source),
        highest_effort=_highest_effort(template),
    ).tried_out(template)


class QwenXml(Profile, frozen=True, kw_only=True):
    """A profile whose template takes arguments one by one."""

    highest_effort: str = "high"  # by its name in the template

    def template_input(
        self, messages: Sequence[Message], tools: Sequence[Tool], effort: str | None
    ) -> tuple[Sequence[Message], dict[str, Any]]:
        """Return messages and variables as this model's template wants them."""
        said = [_with_named_arguments(message) for message in messages]
        return super().template_input(said, tools, effort)

    def switches(self, effort: str | None) -> dict[str, Any]:
        """Return the template's variables that switch thinking on or off."""
        return super().switches(self.highest_effort if effort == "high" else effort)


class QwenXmlCalls:
    """The format as a whole."""

    openings = (CALL, FUNCTION)  # models leave the first one out
    bare_opening = ""
    markers = (CALL, CALL_END)
    are_control_tokens = False

    def reader(self, opening: str, tools: Sequence[Tool]) -> QwenXmlReader:
        """Return what reads after a tag; calls of other tools than these are no calls."""
        return QwenXmlReader(opening, tools)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> Grammar:
        """Allow one call of any of these tools, or several, and nothing else."""
        calls = tuple(_call_grammar(tool) for tool in tools)
        one = calls[0] if len(calls) == 1 else Choice(calls)
        if not several:
            return one
        return InTurn((one, Repeat(InTurn((Literal("\n"), one)), 0, None)))


def _call_grammar(tool: Tool) -> Grammar:
    return InTurn(
        (
            Literal(f"{CALL}\n{FUNCTION}{tool.name}>\n"),
            *(_argument_grammar(argument) for argument in arguments(tool)),
            Literal(f"{FUNCTION_END}\n{CALL_END}"),
        )
    )


def _argument_grammar(argument: Argument) -> Grammar:
    # A text with the start of an argument in it, or the end of one, would be read as that.
    value = argument.value(f"\n{PARAMETER_END}\n", without=(PARAMETER, PARAMETER_END, CALL_END))
    whole = InTurn((Literal(f"{PARAMETER}{argument.name}>\n"), value))
    return whole if argument.is_required else Repeat(whole, 0, 1)


def _highest_effort(template: ChatTemplate) -> str:
    """Return what Qwen 3.8 calls ``xhigh``, and refuses under any other name."""
    try:
        template.render([USER], enable_thinking=True, reasoning_effort="high")
    except TemplateError:
        return "xhigh"
    return "high"


def _with_named_arguments(message: Message) -> Message:
    """Give a name to arguments that are no object, which no argument's place fits."""
    if "tool_calls" not in message:
        return message
    return {**message, "tool_calls": [_named(call) for call in message["tool_calls"]]}


def _named(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call["function"]
    if isinstance(function["arguments"], Mapping):
        return call
    return {**call, "function": {**function, "arguments": {"arguments": function["arguments"]}}}
