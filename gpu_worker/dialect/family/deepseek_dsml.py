"""DeepSeek V3.2: calls in DSML, whose arguments stand one by one between tags.

V3.2 brings no Jinja template; ``template_for`` gives ours. Tags have one token of their own,
``｜DSML｜``, which no text spells; its tokenizer.json does not call it special. V4, whose template
its vendor gives, names the block otherwise and is read and held to that.
"""

from collections.abc import Container, Sequence
from pathlib import Path

from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.family.deepseek import THOUGHTS, Switched, switch_of
from gpu_worker.dialect.family.deepseek_dsml_grammar import call_grammar
from gpu_worker.dialect.family.deepseek_dsml_reader import (
    BLOCK,
    BLOCK_OF_V4,
    DSML,
    OPENING,
    DsmlReader,
)
from gpu_worker.dialect.profile import Profile
from gpu_worker.dialect.template_traits import traits
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine import grammar
from gpu_worker.engine.grammar import Grammar

TEMPLATE = Path(__file__).with_name("deepseek_v32.jinja")
ONLY_V4 = "<｜latest_reminder｜>"  # V3.2's vocabulary does not have it


def template_for(special_tokens: Container[str]) -> str | None:
    """Return the template of a model that brings none; None if it is not V3.2.

    Args:
        special_tokens: the texts of the tokens that its vocabulary has added.
    """
    if DSML in special_tokens and ONLY_V4 not in special_tokens:
        return TEMPLATE.read_text(encoding="utf-8")
    return None


def matches(template: ChatTemplate) -> bool:
    """Tell whether a template writes DSML."""
    return DSML in template.source


def profile(template: ChatTemplate) -> Profile:
    """Return how such a model speaks."""
    switch = switch_of(template)
    return Switched(
        family="deepseek_dsml",
        traits=traits(template),
        calls=DsmlCalls(BLOCK if BLOCK in template.source else BLOCK_OF_V4),
        thoughts=THOUGHTS if THOUGHTS.end in template.source else None,
        can_be_kept_from_thinking=bool(switch),
        switch=switch,
    )


class DsmlCalls:
    """The format as a whole."""

    openings = (OPENING, DSML)
    bare_opening = ""
    markers = (DSML,)
    are_control_tokens = True

    def __init__(self, block: str) -> None:
        """Set how calls are written; both ways are read.

        Args:
            block: the name of the tag around them, with its bracket.
        """
        self._block = block

    def reader(self, opening: str, tools: Sequence[Tool]) -> DsmlReader:
        """Return what reads after a marker; calls of other tools than these are no calls."""
        return DsmlReader(opening, tools)

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> Grammar:
        """Allow one call of any of these tools, or several, and nothing else."""
        one = grammar.Choice(tuple(map(call_grammar, tools)))
        return grammar.Sequence(
            (
                grammar.Literal(f"\n\n{OPENING}{self._block}\n"),
                grammar.Repeat(one, 1, None if several else 1),
                grammar.Literal(f"</{DSML}{self._block}"),
            )
        )
