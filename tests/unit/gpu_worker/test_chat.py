"""Requests become plain values, or refusals that say what to change."""

import pytest

from fastrun.v1.generation_pb2 import (
    ChatMessage,
    GenerateRequest,
    ReasoningEffort,
    ResponseFormat,
    Role,
    Tool,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
)
from gpu_worker import chat
from gpu_worker.chat import InvalidRequestError

NOW = Tool(name="now")
WEATHER = Tool(name="weather", description="Of a city", parameters_json_schema='{"properties": {}}')


def choice(mode, name=""):
    """Return a tool choice by the end of its name."""
    return ToolChoice(mode=ToolChoiceMode.Value(f"TOOL_CHOICE_MODE_{mode}"), name=name)


def test_messages_take_openais_shape():
    """Calls have parsed arguments where they are an object, else the text; an absent content is ''."""
    said = [
        ChatMessage(role=Role.ROLE_USER, content="hi"),
        ChatMessage(
            role=Role.ROLE_ASSISTANT,
            reasoning="hm",
            tool_calls=[
                ToolCall(id="a", name="now", arguments='{"b": [1]}'),
                ToolCall(id="b", name="now", arguments="oops"),
                ToolCall(id="c", name="now"),
                ToolCall(id="d", name="now", arguments='{"half a character": "\\ud800"}'),
                ToolCall(id="e", name="now", arguments='{"too large": 1e999}'),
            ],
        ),
        ChatMessage(role=Role.ROLE_TOOL, content="12", tool_call_id="a"),
    ]
    user, assistant, tool = chat.read(GenerateRequest(messages=said)).messages
    assert user == {"role": "user", "content": "hi"}
    assert assistant["content"] == ""
    assert assistant["reasoning"] == assistant["reasoning_content"] == "hm"
    assert [call["function"]["arguments"] for call in assistant["tool_calls"]] == [
        {"b": [1]},
        "oops",
        {},
        '{"half a character": "\\ud800"}',
        '{"too large": 1e999}',
    ]
    assert assistant["tool_calls"][0]["id"] == "a"
    assert assistant["tool_calls"][0]["type"] == "function"
    assert tool == {"role": "tool", "content": "12", "tool_call_id": "a"}


@pytest.mark.parametrize(
    ("tool_choice", "may_call", "shown", "forced", "most"),
    [
        (None, ["now", "weather"], ["now", "weather"], False, None),
        (choice("AUTO"), ["now", "weather"], ["now", "weather"], False, None),
        (choice("NONE"), [], [], False, None),
        (choice("REQUIRED"), ["now", "weather"], ["now", "weather"], True, None),
        (choice("NAMED", "now"), ["now"], ["now", "weather"], True, 1),
    ],
)
def test_tool_choices(tool_choice, may_call, shown, forced, most):
    """Which tools the model is told of, which it may call, and whether it must."""
    asked = chat.read(GenerateRequest(tools=[NOW, WEATHER], tool_choice=tool_choice))
    assert [tool.name for tool in asked.tools] == may_call
    assert [tool.name for tool in asked.shown_tools] == shown
    assert (asked.forced, asked.most_calls) == (forced, most)


def test_arguments_are_an_object():
    """Also where parameters allow null besides, as some clients write of what may be absent."""
    parameters = '{"type": ["object", "null"], "properties": {}}'
    request = GenerateRequest(tools=[Tool(name="f", parameters_json_schema=parameters)])
    assert chat.read(request).tools[0].parameters == {"type": "object", "properties": {}}


def test_parallel_calls_can_be_refused():
    """False is at most one call; true and absent are any number."""
    for parallel, most in [(False, 1), (True, None), (None, None)]:
        request = GenerateRequest(tools=[NOW], parallel_tool_calls=parallel)
        assert chat.read(request).most_calls == most


def test_formats_are_schemas():
    """Text has none, a JSON object is any object, a schema is as given."""
    for given, schema in [
        (None, None),
        (ResponseFormat(), None),
        (ResponseFormat(json_object=True), '{"type": "object"}'),
        (ResponseFormat(json_schema='{"enum": [1]}'), '{"enum": [1]}'),
    ]:
        assert chat.read(GenerateRequest(response_format=given)).schema == schema


def test_efforts_and_template_variables():
    """Absent and none are off; variables are taken from their JSON."""
    for effort, name in [("UNSPECIFIED", None), ("NONE", None), ("LOW", "low"), ("HIGH", "high")]:
        number = ReasoningEffort.Value(f"REASONING_EFFORT_{effort}")
        assert chat.read(GenerateRequest(reasoning_effort=number)).effort == name
    request = GenerateRequest(chat_template_kwargs_json='{"enable_thinking": true, "x": [1]}')
    assert chat.read(request).variables == {"enable_thinking": True, "x": [1]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_choice": choice("REQUIRED")}, "give tools as well"),
        ({"tools": [NOW], "tool_choice": choice("NAMED", "x")}, "not among the tools"),
        ({"tools": [Tool()]}, "needs a name"),
        ({"tools": [Tool(name="f", parameters_json_schema="[]")]}, "'f' must be a JSON object"),
        (
            {"tools": [Tool(name="f", parameters_json_schema='{"type": "string"}')]},
            "must be of type object",
        ),
        ({"chat_template_kwargs_json": "[1]"}, "chat_template_kwargs must be a JSON object"),
        ({"chat_template_kwargs_json": "[" * 100_000}, "chat_template_kwargs must be"),
        (
            {"chat_template_kwargs_json": '{"messages": [], "tokenize": 1, "ok": 1}'},
            "must not set messages, tokenize",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(fields, message):
    """The message names the field and what to do."""
    with pytest.raises(InvalidRequestError, match=message):
        chat.read(GenerateRequest(**fields))
