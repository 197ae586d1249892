"""Calls as NousResearch's Hermes, Qwen 2.5 and 3 and many ChatML models write them.

The tag holds JSON with a name and arguments; there is one tag for each call.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpu_worker.dialect.hermes_reader import BROKEN_END, CLOSING, OPENING, HermesReader
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine import grammar
from gpu_worker.engine.grammar import Grammar

# For models whose template does not know tools: those that do were trained on their own words.
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


class Hermes:
    """The format as a whole."""

    opening = OPENING
    markers = (OPENING, CLOSING)

    def reader(self, names: Collection[str]) -> HermesReader:
        """Return what reads after an opening marker; other names than these are no calls."""
        return HermesReader(names)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> Grammar:
        """Allow one call of any of these tools, or several, and nothing else."""
        calls = tuple(_call_grammar(tool) for tool in tools)
        one = calls[0] if len(calls) == 1 else grammar.Choice(calls)
        if not several:
            return one
        more = grammar.Sequence((grammar.Literal("\n"), one))
        return grammar.Sequence((one, grammar.Repeat(more, 0, None)))

    def in_words(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]
    ) -> list[dict[str, Any]]:
        """Write tools, calls and results into the texts, for a template that knows none."""
        said = [_in_words(message) for message in messages]
        if not tools:
            return said
        lines = (json.dumps(tool.as_template_value(), ensure_ascii=False) for tool in tools)
        instructions = INSTRUCTIONS.format(tools="\n".join(lines))
        if said and said[0]["role"] == "system":
            system = said[0] | {"content": f"{said[0]['content']}\n\n{instructions}"}
            return [system, *said[1:]]
        return [{"role": "system", "content": instructions}, *said]


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


def _in_words(message: Mapping[str, Any]) -> dict[str, Any]:
    content: str = message["content"]
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [
        f"{OPENING}\n{json.dumps(call['function'], ensure_ascii=False)}{BROKEN_END}"
        for call in message.get("tool_calls", ())
    ]
    return {"role": message["role"], "content": "\n".join([content, *calls] if content else calls)}
