"""Llama 3.1, 3.2 and 3.3, and what is trained further from them with the same template.

A call is a bare JSON object where nothing has been said yet, or stands after ``<|python_tag|>``;
several are joined by semicolons. Checked against Meta's own description of the format
(meta-llama/llama-models, ``models/llama3_1/prompt_format.md`` and ``models/llama3/*.py`` at
a9c89c4) and the templates that are published with the models.
"""

import json
import re
from collections.abc import Sequence

from gpu_worker.dialect.chat_template import ChatTemplate, TemplateError
from gpu_worker.dialect.family.llama_reader import BARE, TAG, LlamaReader
from gpu_worker.dialect.profile import Profile
from gpu_worker.dialect.template_traits import called, traits
from gpu_worker.dialect.thinking import thoughts_of
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine import grammar
from gpu_worker.engine.grammar import Grammar

# A message ends where a tool is to be run, a turn where the answer is complete, a text in models
# without instruction training (``Tokenizer.stop_tokens`` in Meta's code).
STOP_TOKENS = ("<|eom_id|>", "<|eot_id|>", "<|end_of_text|>")
HEADER_END = "<|end_header_id|>"
_CALL = re.compile(
    re.escape(f"assistant{HEADER_END}\n\n")
    + rf'(?:{re.escape(TAG)})?{{"name": "probe", "(?:parameters|arguments)": '
)


def matches(template: ChatTemplate) -> bool:
    """Tell whether a template reads tools and writes a call into the history as Llama does.

    Its headers alone say nothing: other models that began as a Llama have calls of their own.
    """
    if "tools" not in template.reads or HEADER_END not in template.source:
        return False
    try:
        history = template.render(called({}))
    except TemplateError:
        return False
    return _CALL.search(history) is not None


def profile(template: ChatTemplate) -> Profile:
    """Return how such a model speaks."""
    return Profile(
        family="llama",
        traits=traits(template),
        calls=LlamaCalls(),
        thoughts=thoughts_of(template.source),
        stop_tokens=STOP_TOKENS,
    )


class LlamaCalls:
    """The format as a whole."""

    openings = (TAG,)
    bare_opening = BARE
    markers = (TAG,)
    are_control_tokens = True

    def reader(self, opening: str, tools: Sequence[Tool]) -> LlamaReader:
        """Return what reads after the tag or a bracket; calls of other tools are no calls."""
        return LlamaReader(opening, tools)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> Grammar:
        """Allow one call of any of these tools, or several, and nothing else."""
        calls = tuple(_call_grammar(tool) for tool in tools)
        one = calls[0] if len(calls) == 1 else grammar.Choice(calls)
        if not several:
            return one
        more = grammar.Sequence((grammar.Literal("; "), one))
        return grammar.Sequence((one, grammar.Repeat(more, 0, None)))


def _call_grammar(tool: Tool) -> Grammar:
    # In the pieces that JSON is made of: where content in JSON is allowed as well, a compiler that
    # does not look ahead can then go on with either for as long as they are the same.
    name = json.dumps(tool.name, ensure_ascii=False)
    pieces = ("{", '"name"', ": ", name, ", ", '"parameters"', ": ")
    arguments = grammar.Json(json.dumps(tool.arguments_schema(), ensure_ascii=False))
    return grammar.Sequence((*map(grammar.Literal, pieces), arguments, grammar.Literal("}")))
