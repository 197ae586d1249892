"""How a model speaks, found from its own chat template.

The rules, in order; a later family puts its own before the last:

* A template that writes ``<think>`` belongs to a model that thinks between those tags.
* One that reads ``tools`` and writes ``<tool_call>`` has Hermes' calls, and is given the tools.
* For any other, tools are described in words of ours, with Hermes' calls: a model without training
  in calls still makes them where it is held to them by a grammar.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpu_worker.dialect.calls import CallFormat
from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.hermes import Hermes
from gpu_worker.dialect.hermes_reader import OPENING
from gpu_worker.dialect.parser import Thinking, ThoughtMarkers
from gpu_worker.dialect.tools import Tool

THINK_TAGS = ThoughtMarkers(begin="<think>", end="</think>", after="\n\n")


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What a template and a parser need to know of a model."""

    thoughts: ThoughtMarkers | None  # None: the model does not think
    calls: CallFormat
    template_takes_tools: bool

    @property
    def markers(self) -> frozenset[str]:
        """Texts that have to be seen in the output, even if they are special tokens."""
        thoughts = (self.thoughts.begin, self.thoughts.end) if self.thoughts else ()
        return frozenset((*self.calls.markers, *thoughts))

    @property
    def features(self) -> list[str]:
        """What a request may ask of the model."""
        features = ["tools", "structured_output", "logprobs"]
        return [*features, "reasoning"] if self.thoughts else features

    def template_input(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], effort: str | None
    ) -> tuple[Sequence[Mapping[str, Any]], dict[str, Any]]:
        """Return messages and variables as this model's template wants them.

        Args:
            messages: in OpenAI's shape.
            tools: to show to the model.
            effort: of reasoning; None switches it off.
        """
        variables: dict[str, Any] = {"enable_thinking": effort is not None}
        if effort is not None:
            variables["reasoning_effort"] = effort
        if not self.template_takes_tools:
            return self.calls.in_words(messages, tools), variables
        if tools:
            variables["tools"] = [tool.as_template_value() for tool in tools]
        return messages, variables

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
        if end.endswith(self.thoughts.begin):
            return Thinking.OPEN
        return Thinking.NO if end.endswith(self.thoughts.end) else Thinking.MAYBE


def find(template: ChatTemplate) -> Profile:
    """Return the profile of the model that a template belongs to."""
    return Profile(
        thoughts=THINK_TAGS if THINK_TAGS.begin in template.source else None,
        calls=Hermes(),
        template_takes_tools="tools" in template.reads and OPENING in template.source,
    )
