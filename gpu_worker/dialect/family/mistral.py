"""Mistral's models, from the first that called tools (tokenizer v2) to the latest (v15).

Checked against Mistral's own account of its formats, which writes chat templates too:
github.com/mistralai/mistral-common at bc022b9 (``tokens/tokenizers/instruct.py``, ``guidance/``,
``integrations/chat_templates/``). Of its models that think: docs.mistral.ai,
``capabilities/reasoning/native`` and ``inference/conversations/reasoning``, and the model cards of
Magistral Small 2506 to 2509 and of Ministral 3 Reasoning.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.family.mistral_history import History
from gpu_worker.dialect.family.mistral_reader import ARGS, CALL_ID, OPENING, MistralReader
from gpu_worker.dialect.family.mistral_template import EFFORTS, accepted_efforts, history
from gpu_worker.dialect.messages import Message
from gpu_worker.dialect.profile import Profile
from gpu_worker.dialect.template_traits import traits
from gpu_worker.dialect.thinking import ThoughtMarkers
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine import grammar
from gpu_worker.engine.grammar import Grammar

CONTROLS = ThoughtMarkers("[THINK]", "[/THINK]", are_control_tokens=True)
TAGS = ThoughtMarkers("<think>", "</think>", after="\n")  # of Magistral Small 2506 alone
CALL_ID_SCHEMA = json.dumps({"type": "string", "pattern": "^[a-zA-Z0-9]{9}$"})


def matches(template: ChatTemplate) -> bool:
    """Tell whether a template reads tools and writes Mistral's markers."""
    source = template.source
    return "tools" in template.reads and OPENING in source and "[INST]" in source


def profile(template: ChatTemplate) -> Profile:
    """Return how such a model speaks."""
    source = template.source
    thoughts = next((each for each in (CONTROLS, TAGS) if each.begin in source), None)
    efforts = accepted_efforts(template)
    found = traits(template)
    takes = history(template, found, thoughts)
    return Mistral(
        family="mistral",
        # The rest is the history's affair.
        traits=msgspec.structs.replace(
            found,
            calls_have_content=found.calls_have_content or not takes.takes_text_before_calls,
            contents_are_parts=False,
        ),
        calls=MistralCalls(lists=ARGS not in source, space=f"{OPENING} " in source),
        thoughts=thoughts,
        can_be_kept_from_thinking=thoughts is None or "none" in efforts,
        stop_tokens=("</s>",),
        history=takes,
        accepted_efforts=efforts,
    )


class Mistral(Profile, frozen=True, kw_only=True):
    """A profile that writes histories as these templates take them."""

    history: History
    # From the least to the most; empty for models that think always or never.
    accepted_efforts: tuple[str, ...] = ()

    def template_input(
        self, messages: Sequence[Message], tools: Sequence[Tool], effort: str | None
    ) -> tuple[Sequence[Message], dict[str, Any]]:
        """Return messages and variables as this model's template wants them."""
        placed = self.history.with_systems(messages)
        said, variables = super().template_input(placed, tools, effort)
        thinks = effort is not None and self.thoughts is not None
        return self.history.written(said, thinks=thinks), variables

    def switches(self, effort: str | None) -> dict[str, Any]:
        """Return the template's variables that switch thinking on or off.

        Of efforts that a template does not accept, the next higher one counts.
        """
        if not self.accepted_efforts:
            return super().switches(effort)
        wanted = 0 if effort is None else EFFORTS.index(effort)
        enough = (each for each in self.accepted_efforts if EFFORTS.index(each) >= wanted)
        return {"reasoning_effort": next(enough, self.accepted_efforts[-1])}

    def asks_to_think(self, variables: Mapping[str, Any]) -> bool:
        """Tell whether the template's variables switch thinking on."""
        if not self.accepted_efforts:
            return super().asks_to_think(variables)
        return bool(variables.get("reasoning_effort", "none") != "none")


class MistralCalls:
    """The format as a whole. Models read and write one form of it, and all are read."""

    openings = (OPENING,)
    bare_opening = ""
    markers = (OPENING, CALL_ID, ARGS)
    are_control_tokens = True

    def __init__(self, *, lists: bool, space: bool) -> None:
        """Say what the model writes.

        Args:
            lists: of calls, as with tokenizers up to v7; else one call after the other.
            space: one after the marker, as with some templates that write lists.
        """
        self._lists = lists
        self._space = space

    def reader(self, opening: str, tools: Sequence[Tool]) -> MistralReader:
        """Return what reads after the marker; calls of other tools than these are no calls."""
        del opening  # there is one
        return MistralReader(frozenset(tool.name for tool in tools))

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> Grammar:
        """Allow one call of any of these tools, or several, and nothing else."""
        if not self._lists:
            one = _choice([_named(tool) for tool in tools])
            return grammar.Repeat(one, 1, None) if several else one
        one = _choice([_listed(tool) for tool in tools])
        more = grammar.Repeat(grammar.Sequence((grammar.Literal(", "), one)), 0, None)
        begin = grammar.Literal(f"{OPENING} [" if self._space else f"{OPENING}[")
        calls = (one, more) if several else (one,)
        return grammar.Sequence((begin, *calls, grammar.Literal("]")))


def _choice(options: Sequence[Grammar]) -> Grammar:
    return options[0] if len(options) == 1 else grammar.Choice(tuple(options))


def _named(tool: Tool) -> Grammar:
    """Without an id also for v11: Mistral's own grammar has none (``guidance/``)."""
    return grammar.Sequence((grammar.Literal(f"{OPENING}{tool.name}{ARGS}"), _arguments(tool)))


def _listed(tool: Tool) -> Grammar:
    name = json.dumps(tool.name, ensure_ascii=False)
    end = grammar.Literal("}")
    with_id = grammar.Sequence((grammar.Literal(', "id": '), grammar.Json(CALL_ID_SCHEMA), end))
    return grammar.Sequence(
        (
            grammar.Literal(f'{{"name": {name}, "arguments": '),
            _arguments(tool),
            grammar.Choice((end, with_id)),
        )
    )


def _arguments(tool: Tool) -> Grammar:
    return grammar.Json(json.dumps(tool.arguments_schema(), ensure_ascii=False))
