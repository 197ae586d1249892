"""gpt-oss, whose answers are messages in OpenAI's harmony format.

Each message has a channel: what is thought goes to ``analysis``, what is said to ``final``, and
``commentary`` is for calls, and for what is said to the user before them. A call ends the answer,
so that there is one at most. The model always thinks, at three levels of effort.

The format is documented at https://github.com/openai/harmony (docs/format.md at 20cd04c1); prompts
and well-formed answers are compared with that project's library in the tests.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.constraint import after_thought
from gpu_worker.dialect.family import harmony_header
from gpu_worker.dialect.family.harmony_header import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FUNCTIONS,
    MARKERS,
    MESSAGE,
    RETURN,
    START,
    Kind,
)
from gpu_worker.dialect.family.harmony_messages import for_template, tool_for_template
from gpu_worker.dialect.family.harmony_parser import HarmonyParser
from gpu_worker.dialect.family.harmony_reader import HarmonyReader
from gpu_worker.dialect.messages import Message, within
from gpu_worker.dialect.profile import Profile
from gpu_worker.dialect.template_traits import traits
from gpu_worker.dialect.thinking import Thinking, ThoughtMarkers
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine import grammar
from gpu_worker.engine.grammar import Grammar

NEXT = f"{START}assistant"  # what comes between two messages of one answer
THOUGHTS = ThoughtMarkers(
    begin=f"{CHANNEL}analysis{MESSAGE}", end=END, after=NEXT, are_control_tokens=True
)
LEAST_EFFORT = "low"


def matches(template: ChatTemplate) -> bool:
    """Tell whether a template writes messages with channels."""
    return all(marker in template.source for marker in (START, CHANNEL, MESSAGE))


def profile(template: ChatTemplate) -> Profile:
    """Return how such a model speaks."""
    return Harmony(
        family="harmony",
        traits=traits(template),
        calls=HarmonyCalls(),
        thoughts=THOUGHTS,
        can_be_kept_from_thinking=False,
        # Not END, which ends a message.
        stop_tokens=(RETURN, CALL),
    )


class HarmonyCalls:
    """Calls as messages to functions."""

    openings = (CHANNEL,)
    bare_opening = ""
    markers = MARKERS
    are_control_tokens = True

    def reader(self, opening: str, tools: Sequence[Tool]) -> HarmonyReader:
        """Return what reads after a header."""
        names = frozenset(tool.name for tool in tools)
        return HarmonyReader(harmony_header.read(opening, names, is_whole=True).function)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> Grammar:
        """Allow one call of any of these tools, and nothing else.

        The model writes the header in one of three ways, by its fancy. After the arguments it can
        only end the answer.
        """
        del several  # there is never more than one
        calls = tuple(_call_grammar(tool) for tool in tools)
        return calls[0] if len(calls) == 1 else grammar.Choice(calls)


class Harmony(Profile, frozen=True, kw_only=True):
    """A profile whose answers begin within a header."""

    @property
    def markers(self) -> frozenset[str]:
        """Texts that have to be seen in the output, even if they are special tokens."""
        return frozenset(MARKERS)

    def template_input(
        self, messages: Sequence[Message], tools: Sequence[Tool], effort: str | None
    ) -> tuple[Sequence[Message], dict[str, Any]]:
        """Return messages and variables as this model's template wants them."""
        variables = self.switches(effort)
        if tools:
            variables["tools"] = [tool_for_template(tool) for tool in tools]
        return list(for_template(within(self.traits, messages))), variables

    def switches(self, effort: str | None) -> dict[str, Any]:
        """Return the effort; there is no way not to think."""
        return {"reasoning_effort": effort or LEAST_EFFORT}

    def asks_to_think(self, variables: Mapping[str, Any]) -> bool:
        """Let it think, whatever was asked: its answers are worse if a grammar forbids it."""
        del variables
        return True

    def thinking_after(self, prompt: str) -> Thinking:
        """Tell from the end of a prompt which message the answer begins in, if in any."""
        if not prompt.endswith(MESSAGE):
            return Thinking.MAYBE
        header = prompt.removesuffix(MESSAGE).rpartition(START)[2]
        kind = harmony_header.read(header, (), has_role=True, is_whole=True).kind
        return Thinking.OPEN if kind is Kind.THOUGHT else Thinking.NO

    def parser(
        self,
        *,
        thinking: Thinking,
        tools: Sequence[Tool],
        most_calls: int | None,
        stops: Sequence[str],
    ) -> HarmonyParser:
        """Return what takes one answer apart."""
        return HarmonyParser(thinking=thinking, tools=tools, most_calls=most_calls, stops=stops)

    def grammar(
        self,
        *,
        thinking: Thinking,
        thinks: bool,
        schema: str | None,
        tools: Sequence[Tool],
        forced: bool,
        several: bool,
    ) -> Grammar | None:
        """Return what one answer, its thought included, is held to; None for anything."""
        del thinks  # always
        options: list[Grammar] = []
        if forced or (schema is not None and tools):
            options.append(self.calls.grammar(tools, several=several))
        if schema is not None and not forced:
            final = grammar.Literal(f"{CHANNEL}final{MESSAGE}")
            options.append(grammar.Sequence((final, grammar.Json(schema))))
        if not options:
            return None
        answer = options[0] if len(options) == 1 else grammar.Choice(tuple(options))
        if thinking is Thinking.NO:  # the prompt has begun a message that is none of these
            return grammar.Sequence((grammar.Literal(END + NEXT), answer))
        return after_thought(answer, thoughts=self.thoughts, thinking=thinking)


def _call_grammar(tool: Tool) -> Grammar:
    to = f" to={FUNCTIONS}{tool.name}"
    headers = (
        f"{CHANNEL}commentary{to} {CONSTRAIN}json{MESSAGE}",
        f"{to}{CHANNEL}commentary {CONSTRAIN}json{MESSAGE}",
        f"{to}{CHANNEL}commentary json{MESSAGE}",
    )
    return grammar.Sequence(
        (
            grammar.Choice(tuple(map(grammar.Literal, headers))),
            grammar.Json(json.dumps(tool.arguments_schema(), ensure_ascii=False)),
        )
    )
