"""How a model speaks: what its template takes, and how its answers are read and held to a form.

This is what most families share; a family that differs overrides it in its own module.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from gpu_worker.dialect.answer import AnswerParser
from gpu_worker.dialect.calls import CallFormat
from gpu_worker.dialect.chat_template import ChatTemplate, TemplateError
from gpu_worker.dialect.constraint import after_thought, constraint
from gpu_worker.dialect.messages import Message, within
from gpu_worker.dialect.parser import Parser
from gpu_worker.dialect.template_traits import USER, Traits
from gpu_worker.dialect.thinking import Thinking, ThoughtMarkers
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.grammar import Grammar


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What a template and a parser need to know of a model."""

    family: str
    traits: Traits
    calls: CallFormat
    thoughts: ThoughtMarkers | None = None  # None: the model does not think
    can_be_kept_from_thinking: bool = True
    stop_tokens: tuple[str, ...] = ()  # end a turn, besides those that the model declares
    # Set by hand: further variables of the template, for ``off`` and each effort.
    efforts: Mapping[str, Mapping[str, Any]] = {}

    @property
    def markers(self) -> frozenset[str]:
        """Texts that have to be seen in the output, even if they are special tokens."""
        thoughts = (self.thoughts.begin, self.thoughts.end) if self.thoughts else ()
        return frozenset((*self.calls.markers, *thoughts))

    @property
    def features(self) -> list[str]:
        """What a request may ask of the model."""
        features = ["tools", "structured_output", "logprobs"]
        if not self.thoughts:
            return features
        return [*features, "reasoning" if self.can_be_kept_from_thinking else "reasoning: always"]

    def template_input(
        self, messages: Sequence[Message], tools: Sequence[Tool], effort: str | None
    ) -> tuple[Sequence[Message], dict[str, Any]]:
        """Return messages and variables as this model's template wants them.

        Args:
            messages: in OpenAI's shape.
            tools: to show to the model.
            effort: of reasoning; None switches it off.
        """
        variables = self.switches(effort)
        if tools:
            variables["tools"] = [tool.as_template_value() for tool in tools]
        return within(self.traits, messages), variables

    def switches(self, effort: str | None) -> dict[str, Any]:
        """Return the template's variables that switch thinking on or off."""
        variables: dict[str, Any] = {"enable_thinking": effort is not None}
        if effort is not None:
            variables["reasoning_effort"] = effort
        return variables

    def tried_out(self, template: ChatTemplate) -> Self:
        """Return this profile with what the template tells of its off switch: it may have none."""
        messages, variables = self.template_input([USER], (), None)
        try:
            prompt = template.render(messages, **variables)
        except TemplateError:
            return self
        is_off = self.thinking_after(prompt) is Thinking.NO
        return msgspec.structs.replace(self, can_be_kept_from_thinking=is_off)

    def asks_to_think(self, variables: Mapping[str, Any]) -> bool:
        """Tell whether the template's variables switch thinking on."""
        return bool(variables.get("enable_thinking"))

    def thinking_after(self, prompt: str) -> Thinking:
        """Tell from the end of a prompt whether the answer begins within a thought.

        The template knows best: flags have other names and other defaults in each.
        """
        if self.thoughts is None:
            return Thinking.NO
        end = prompt.rstrip()
        if end.endswith((self.thoughts.begin + self.thoughts.label).rstrip()):
            return Thinking.OPEN
        return Thinking.NO if end.endswith(self.thoughts.end) else Thinking.MAYBE

    def parser(
        self,
        *,
        thinking: Thinking,
        tools: Sequence[Tool],
        most_calls: int | None,
        stops: Sequence[str],
    ) -> AnswerParser:
        """Return what takes one answer apart.

        Args:
            thinking: where it begins.
            tools: that may be called.
            most_calls: the answer ends after so many; None for any number.
            stops: texts that end the content.
        """
        return Parser(
            markers=self.thoughts,
            thinking=thinking,
            calls=self.calls if tools or self.calls.are_control_tokens else None,
            tools=tools,
            most_calls=most_calls,
            stops=stops,
        )

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
        """Return what one answer, its thought included, is held to; None for anything.

        Args:
            thinking: where it begins.
            thinks: the model has been asked to think, and may.
            schema: of the content.
            tools: that may be called.
            forced: at least one of them has to be.
            several: more than one call may be made.
        """
        answer = constraint(
            schema=schema, calls=self.calls, tools=tools, forced=forced, several=several
        )
        # A model that cannot be told not to think is kept from it by the grammar.
        if answer is None or not (thinks or thinking is Thinking.OPEN):
            return answer
        return after_thought(answer, thoughts=self.thoughts, thinking=thinking)
