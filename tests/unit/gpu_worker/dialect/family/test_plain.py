"""Models that know no tools are told of them in words."""

from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.family import plain
from gpu_worker.dialect.tools import Tool

NOW = Tool("now")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = plain.profile(ChatTemplate(CHATML))


def test_tools_calls_and_results_are_put_into_words():
    """A template that knows only roles and contents still carries a conversation with tools."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Time?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "function": {"name": "now", "arguments": {"a": "é"}}}],
        },
        {"role": "tool", "content": "12:00", "tool_call_id": "c"},
    ]
    system, user, assistant, result = PLAIN.template_input(messages, [NOW], None)[0]
    assert system["content"].startswith("Be brief.\n\n# Tools")
    assert '{"type": "function", "function": {"name": "now"' in system["content"]
    assert user == messages[1]
    assert assistant["content"] == (
        '<tool_call>\n{"name": "now", "arguments": {"a": "é"}}\n</tool_call>'
    )
    assert result == {"role": "user", "content": "<tool_response>\n12:00\n</tool_response>"}
    assert PLAIN.template_input(messages[1:2], [NOW], None)[0][0]["role"] == "system"
    assert PLAIN.template_input(messages[1:2], [], None)[0] == messages[1:2]
