"""What one of Mistral's templates takes, found by rendering small conversations with it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_worker.dialect.chat_template import ChatTemplate, TemplateError
from gpu_worker.dialect.family.mistral_history import Chunk, History
from gpu_worker.dialect.messages import Message
from gpu_worker.dialect.template_traits import USER, Traits
from gpu_worker.dialect.thinking import ThoughtMarkers

EFFORTS = ("none", "low", "medium", "high")
_PROBE = "fastrun-probe"
_CALL: Mapping[str, Any] = {
    "id": "probe1234",
    "type": "function",
    "function": {"name": "probe", "arguments": {}},
}
_RESULT: Message = {
    "role": "tool",
    "content": _PROBE,
    "tool_call_id": "probe1234",
    "name": "probe",
}
_SYSTEM = re.compile(r"\[SYSTEM_PROMPT\](.*?)\[/SYSTEM_PROMPT\]", re.DOTALL)


def accepted_efforts(template: ChatTemplate) -> tuple[str, ...]:
    """Return the efforts of reasoning that a template accepts, the least first.

    Templates of tokenizer v15 tell the model of its effort, and refuse any that it was not trained
    with; others know none.
    """
    if "reasoning_effort" not in template.reads:
        return ()
    return tuple(
        effort for effort in EFFORTS if _rendered(template, [USER], reasoning_effort=effort)
    )


def history(template: ChatTemplate, traits: Traits, thoughts: ThoughtMarkers | None) -> History:
    """Return what a template takes of a history.

    Args:
        template: the model's own.
        traits: its own.
        thoughts: what stands around them; None for a model that has none.
    """
    called = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    said = {"role": "assistant", "content": _PROBE}
    results = _rendered(template, [USER, called, _RESULT])
    # In one message, or in one of its own.
    spoken = ([USER, {**called, **said}], [USER, said, called])
    return History(
        takes_systems="[SYSTEM_PROMPT]" in template.source,
        takes_thoughts=thoughts is not None and _takes_thoughts(template, thoughts),
        takes_text_before_calls=any(_rendered(template, each) for each in spoken) or not results,
        takes_texts=not traits.contents_are_parts,
        results_are_json=f'"content": {_PROBE}' in results,
        instructions=_instructions(template, thoughts) if thoughts else (),
        begins_thought=thoughts.begin if thoughts else "",
    )


def _takes_thoughts(template: ChatTemplate, thoughts: ThoughtMarkers) -> bool:
    chunks = [{"type": "thinking", "thinking": _PROBE}, {"type": "text", "text": _PROBE}]
    written = _rendered(template, [USER, {"role": "assistant", "content": chunks}])
    return f"{thoughts.begin}{_PROBE}{thoughts.end}{_PROBE}" in written


def _instructions(template: ChatTemplate, thoughts: ThoughtMarkers) -> tuple[Chunk, ...]:
    """Return the template's own system message, if that is where the model is told to think."""
    rendered = _rendered(template, [USER])
    found = _SYSTEM.search(rendered)
    text = found[1] if found else ""
    before, begun, rest = text.partition(thoughts.begin)
    thought, ended, after = rest.partition(thoughts.end)
    if not (begun and ended):
        return ()
    chunks: list[Chunk] = [{"type": "text", "text": text}]
    if thoughts.are_control_tokens:  # which the template alone can write
        chunks = [{"type": "thinking", "thinking": thought}]
        chunks[:0] = [{"type": "text", "text": before}] if before else []
        chunks += [{"type": "text", "text": after}] if after else []
    content = chunks if thoughts.are_control_tokens else text
    system = {"role": "system", "content": content}
    return tuple(chunks) if _rendered(template, [system, USER]) == rendered else ()


def _rendered(template: ChatTemplate, messages: Sequence[Message], **variables: str) -> str:
    try:
        return template.render(messages, **variables)
    except TemplateError:
        return ""
