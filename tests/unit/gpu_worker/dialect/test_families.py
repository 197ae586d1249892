"""What a template says of its model."""

from pathlib import Path

import pytest

from gpu_worker.dialect import families
from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.thinking import THINK_TAGS, Thinking
from gpu_worker.dialect.tools import Tool

TINY = Path(__file__).parents[3] / "models" / "tiny" / "chat_template.jinja"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello"}]
tiny = ChatTemplate(TINY.read_text())


def prompt(template, effort, tools=()):
    """Render a prompt as a request with this effort gets it."""
    profile = families.find(template)
    messages, variables = profile.template_input(HELLO, tools, effort)
    return profile, template.render(messages, **variables)


def test_a_model_that_thinks_and_calls_is_recognized():
    """The tiny model's template writes both kinds of tags and reads tools."""
    profile, text = prompt(tiny, None, [Tool("now")])
    assert profile.thoughts == THINK_TAGS
    assert profile.family == "hermes"
    assert profile.features == ["tools", "structured_output", "logprobs", "reasoning"]
    assert '{"type": "function", "function": {"name": "now"' in text


def test_the_end_of_the_prompt_tells_where_the_answer_begins():
    """Off: the template closed the thought; on: the model opens it, or the template has."""
    for effort, thinking in [(None, Thinking.NO), ("low", Thinking.MAYBE)]:
        profile, text = prompt(tiny, effort)
        assert profile.thinking_after(text) is thinking
    assert profile.thinking_after("<|im_start|>assistant\n<think>\n") is Thinking.OPEN


def test_a_plain_model_does_not_think_and_is_told_of_tools_in_words():
    """Without thoughts in its template, an effort changes nothing; tools are described."""
    profile, text = prompt(ChatTemplate(CHATML), "high", [Tool("now")])
    assert profile.thinking_after(text) is Thinking.NO
    assert profile.family == "plain"
    assert "reasoning" not in profile.features
    assert text.startswith("<|im_start|>system\n# Tools")
    assert '"name": "now"' in text


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_an_effort_switches_thinking_on(effort):
    """Templates see the switch and the effort."""
    _, variables = families.find(tiny).template_input(HELLO, [], effort)
    assert variables == {"enable_thinking": True, "reasoning_effort": effort}
    _, variables = families.find(tiny).template_input(HELLO, [], None)
    assert variables == {"enable_thinking": False}


def test_special_tokens_that_are_markers_are_seen():
    """A parser needs them, whatever the vocabulary says of them."""
    assert families.find(tiny).markers == {
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
    }
