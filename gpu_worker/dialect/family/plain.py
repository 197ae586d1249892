"""Models whose templates know no tools: they are told of them in words of ours.

Their calls are Hermes', which is what small ChatML models have seen most of.
"""

import json
from collections.abc import Sequence
from typing import Any

from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.family.hermes import Hermes
from gpu_worker.dialect.family.hermes_reader import BROKEN_END, OPENING
from gpu_worker.dialect.messages import Message, within
from gpu_worker.dialect.profile import Profile
from gpu_worker.dialect.template_traits import traits
from gpu_worker.dialect.thinking import thoughts_of
from gpu_worker.dialect.tools import Tool

INSTRUCTIONS = """\
# Tools

You may call these functions:
<tools>
{tools}
</tools>

To call one, write its name and its arguments as a JSON object between tags:
<tool_call>
{{"name": <name>, "arguments": <object>}}
</tool_call>"""


def matches(template: ChatTemplate) -> bool:
    """Take every template."""
    del template
    return True


def profile(template: ChatTemplate) -> Profile:
    """Return how such a model speaks."""
    return Plain(
        family="plain",
        traits=traits(template),
        calls=Hermes(),
        thoughts=thoughts_of(template.source),
    )


class Plain(Profile, frozen=True, kw_only=True):
    """A profile that writes tools, calls and results into the texts."""

    def template_input(
        self, messages: Sequence[Message], tools: Sequence[Tool], effort: str | None
    ) -> tuple[Sequence[Message], dict[str, Any]]:
        """Return messages and variables as this model's template wants them."""
        said: list[Message] = [in_words(message) for message in messages]
        if tools:
            said = with_instructions(said, _instructions(tools))
        return within(self.traits, said), self.switches(effort)


def with_instructions(messages: Sequence[Message], instructions: str) -> list[Message]:
    """Add a text to the first system message, or as one."""
    if messages and messages[0]["role"] == "system":
        system = {**messages[0], "content": f"{messages[0]['content']}\n\n{instructions}"}
        return [system, *messages[1:]]
    return [{"role": "system", "content": instructions}, *messages]


def _instructions(tools: Sequence[Tool]) -> str:
    lines = (json.dumps(tool.as_template_value(), ensure_ascii=False) for tool in tools)
    return INSTRUCTIONS.format(tools="\n".join(lines))


def in_words(message: Message) -> dict[str, Any]:
    """Return a message whose calls, or result, stand in its text."""
    content: str = message["content"]
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [
        f"{OPENING}\n{json.dumps(call['function'], ensure_ascii=False)}{BROKEN_END}"
        for call in message.get("tool_calls", ())
    ]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join([content, *calls] if content else calls)}
