"""SmolLM3, whose template loses calls that it is given."""

import json
from datetime import UTC, datetime
from pathlib import Path

from transcripts import Told, Transcripts

from gpu_worker.dialect import families
from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.thinking import Thinking
from gpu_worker.dialect.tools import Tool

TEMPLATES = Path(__file__).parents[4] / "templates"
NOW = Tool("now")
template = ChatTemplate(
    (TEMPLATES / "smollm3.jinja").read_text(), now=lambda: datetime(2026, 11, 29, tzinfo=UTC)
)
SMOLLM = families.find(template)
HISTORY = [
    {"role": "user", "content": "Time?"},
    {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [{"id": "c", "function": {"name": "now", "arguments": {"zone": "é"}}}],
    },
    {"role": "tool", "content": "12:00", "tool_call_id": "c"},
]


def prompt(messages, effort=None, tools=(NOW,)):
    """Render a prompt as a request with these messages gets it."""
    messages, variables = SMOLLM.template_input(messages, tools, effort)
    return template.render(messages, **variables)


def test_its_template_is_recognized():
    """By the calls that it explains and does not write."""
    assert SMOLLM.family == "smollm"
    assert SMOLLM.features == ["tools", "structured_output", "logprobs", "reasoning"]
    assert families.FAMILIES["hermes"].matches(template)


def test_calls_and_results_stand_in_texts():
    """As the model writes calls, and as other models of this kind are given results."""
    text = prompt(HISTORY, effort="low")
    assert "Reasoning Mode: /think" in text
    assert "'name': 'now'" in text
    assert text.endswith(
        "<|im_start|>user\nTime?<|im_end|>\n"
        "<|im_start|>assistant\nLet me look.\n<tool_call>\n"
        '{"name": "now", "arguments": {"zone": "é"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n12:00\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_call_in_a_history_is_read_as_it_was_written():
    """The words are the ones that its parser takes for a call."""
    turn = prompt(HISTORY, effort="low").split("<|im_start|>assistant\n")[1].split("<|im_end|>")[0]
    told = Transcripts(SMOLLM, [NOW]).read(turn, thinking=Thinking.MAYBE)
    assert told == Told(
        "Let me look.", calls=(("now", json.dumps({"zone": "é"}, ensure_ascii=False), True),)
    )


def test_thinking_can_be_switched_off():
    """Then the template closes the thought before it begins."""
    assert SMOLLM.thinking_after(prompt(HISTORY)) is Thinking.NO
    assert SMOLLM.thinking_after(prompt(HISTORY, effort="low")) is Thinking.MAYBE


def test_system_messages_find_their_place():
    """It takes one, before all others."""
    messages = [HISTORY[0], {"role": "system", "content": "Be brief."}]
    assert "## Custom Instructions\n\nBe brief." in prompt(messages)
    assert prompt(messages[1:]).count("Be brief.") == 1
