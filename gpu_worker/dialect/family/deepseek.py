"""DeepSeek V3, R1 and V3.1: calls between markers, each of which is one id of the vocabulary.

V3 and R1 (and R1's distillations) hold arguments in a code fence, V3.1 (and V3.2-Exp) do not. None
of their own templates declares tools, so that the system text does: for V3.1 in the words that
its model card gives (huggingface.co/deepseek-ai/DeepSeek-V3.1, MIT licence), which it was trained
on, for the others in ours. In V3's tokenizer.json the markers are ids 128806 to 128814 and are not
called special; GGUF files call some of them control tokens.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gpu_worker.dialect.chat_template import ChatTemplate, Composed, Ours, TemplateError
from gpu_worker.dialect.family.deepseek_reader import (
    CALL,
    CALL_END,
    CALLS,
    CALLS_END,
    FENCE,
    LANGUAGE,
    MARKERS,
    SEPARATOR,
    DeepSeekReader,
)
from gpu_worker.dialect.messages import Message
from gpu_worker.dialect.profile import Profile
from gpu_worker.dialect.template_traits import ASSISTANT, USER, called, traits
from gpu_worker.dialect.thinking import ThoughtMarkers
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine import grammar
from gpu_worker.engine.grammar import Grammar

# What a model writes after its calls if it goes on, and makes results up.
RESULTS = ("<｜tool▁outputs▁begin｜>", "<｜tool▁output▁begin｜>")
THOUGHTS = ThoughtMarkers(begin="<think>", end="</think>")

DECLARED = "## Tools\nYou have access to the following tools:\n"
ONE = "\n### {name}\nDescription: {description}\n\nParameters: {parameters}\n"
HOW_TO_CALL = f"""
IMPORTANT: ALWAYS adhere to this exact format for tool use:
{CALLS}{CALL}tool_call_name{SEPARATOR}tool_call_arguments{CALL_END}{{{{additional_tool_calls}}}}\
{CALLS_END}

Where:

- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces
"""
HOW_TO_CALL_FENCED = f"""
To call one or several of them, end your answer with exactly this, with one block for each call:
{CALLS}{CALL}function{SEPARATOR}NAME
{FENCE}{LANGUAGE}
ARGUMENTS
{FENCE}{CALL_END}{CALLS_END}
NAME is the name of the tool and ARGUMENTS a JSON object that follows its parameters.
"""


def matches(template: ChatTemplate) -> bool:
    """Tell whether a template writes calls with DeepSeek's markers."""
    return SEPARATOR in template.source


def profile(template: ChatTemplate) -> Profile:
    """Return how such a model speaks."""
    fenced = FENCE in template.source
    alone = _calls_stand_alone(template)
    found = traits(template)
    switch = switch_of(template)
    thoughts = None
    if THOUGHTS.end in template.source:
        thoughts = msgspec.structs.replace(THOUGHTS, after="" if switch else "\n\n")
    return DeepSeek(
        family="deepseek",
        traits=msgspec.structs.replace(found, arguments_are_text=found.arguments_are_text or alone),
        calls=DeepSeekCalls(fenced=fenced),
        thoughts=thoughts,
        can_be_kept_from_thinking=bool(switch),
        stop_tokens=RESULTS,
        switch=switch,
        declares_tools="tools" in template.reads,
        calls_stand_alone=alone,
        fenced=fenced,
    )


def switch_of(template: ChatTemplate) -> str:
    """Return the variable that switches thinking on; nothing if the template has none."""
    # Some read both, the first of these where the other is not given.
    return next((each for each in ("enable_thinking", "thinking") if each in template.reads), "")


class Switched(Profile, frozen=True, kw_only=True):
    """A profile whose template calls the switch for thinking as it likes."""

    switch: str  # the template's variable; empty for none

    def switches(self, effort: str | None) -> dict[str, Any]:
        """Return the template's variables that switch thinking on or off."""
        return {self.switch: effort is not None} if self.switch else {}

    def asks_to_think(self, variables: Mapping[str, Any]) -> bool:
        """Tell whether the template's variables switch thinking on."""
        return bool(variables.get("thinking", variables.get("enable_thinking")))


class DeepSeek(Switched, frozen=True, kw_only=True):
    """A profile that declares tools in the system text."""

    declares_tools: bool  # the template does it
    calls_stand_alone: bool  # in messages of their own
    fenced: bool

    def template_input(
        self, messages: Sequence[Message], tools: Sequence[Tool], effort: str | None
    ) -> tuple[Sequence[Message], dict[str, Any]]:
        """Return messages and variables as this model's template wants them."""
        said, variables = super().template_input(messages, tools, effort)
        if self.calls_stand_alone:
            said = [part for message in said for part in _with_calls_alone(message)]
        if tools and not self.declares_tools:
            said = _with_declaration(said, tools, fenced=self.fenced)
        return said, variables


class DeepSeekCalls:
    """The format as a whole."""

    openings = MARKERS
    bare_opening = ""
    markers = MARKERS
    are_control_tokens = True

    def __init__(self, *, fenced: bool) -> None:
        """Set how calls are written; both ways are read.

        Args:
            fenced: as V3 and R1 do.
        """
        self._fenced = fenced

    def reader(self, opening: str, tools: Sequence[Tool]) -> DeepSeekReader:
        """Return what reads after a marker; calls of other tools than these are no calls."""
        return DeepSeekReader(opening, frozenset(tool.name for tool in tools))

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> Grammar:
        """Allow one call of any of these tools, or several, and nothing else."""
        one = grammar.Choice(tuple(map(self._call, tools)))
        parts: list[Grammar] = [grammar.Literal(CALLS), one]
        if several:
            more = (grammar.Literal("\n"), one) if self._fenced else (one,)
            parts.append(grammar.Repeat(grammar.Sequence(more), 0, None))
        return grammar.Sequence((*parts, grammar.Literal(CALLS_END)))

    def _call(self, tool: Tool) -> Grammar:
        head, end = f"{tool.name}{SEPARATOR}", CALL_END
        if self._fenced:
            head = f"function{SEPARATOR}{tool.name}\n{FENCE}{LANGUAGE}\n"
            end = f"\n{FENCE}{CALL_END}"
        schema = json.dumps(tool.arguments_schema(), ensure_ascii=False)
        return grammar.Sequence(
            (grammar.Literal(CALL + head), grammar.Json(schema), grammar.Literal(end))
        )


def _with_declaration(
    messages: Sequence[Message], tools: Sequence[Tool], *, fenced: bool
) -> list[Message]:
    """Add what tools there are to the first system message, or as one."""
    each = (
        ONE.format(
            name=tool.name,
            description=tool.description,
            parameters=json.dumps(
                tool.as_template_value()["function"]["parameters"], ensure_ascii=False
            ),
        )
        for tool in tools
    )
    how = Ours(HOW_TO_CALL_FENCED if fenced else HOW_TO_CALL)
    parts = (DECLARED, *each, how)
    if messages and messages[0]["role"] == "system":
        said = Composed(messages[0]["content"], "\n\n", *parts)
        return [{**messages[0], "content": said}, *messages[1:]]
    return [{"role": "system", "content": Composed(*parts)}, *messages]


def _calls_stand_alone(template: ChatTemplate) -> bool:
    """Tell whether a template writes calls only in messages whose content is none.

    That of the first V3 and R1 does; some write the content after the calls.
    """
    content = ASSISTANT["content"]
    _, call, _ = called("{}")
    try:
        text = template.render([USER, {**call, "content": content}])
    except TemplateError:
        return False
    return not 0 <= text.find(content) < text.find(CALL)


def _with_calls_alone(message: Message) -> Iterator[Message]:
    if "tool_calls" not in message:
        yield message
        return
    if message["content"]:
        yield {"role": message["role"], "content": message["content"]}
    yield {**message, "content": None}
