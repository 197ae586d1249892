"""Hermes' calls: read, written, and held to."""

import json

import pytest

from gpu_worker.dialect.family.hermes import OPENING, Hermes
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.grammar import Choice, Json, Literal, Repeat, Sequence

WEATHER = Tool("get_weather", "Weather", {"type": "object", "properties": {"city": {}}})
NOW = Tool("now")


def read(text):
    """Return calls, text that is no call, and what follows, reading after the opening marker."""
    reader, calls, rest = Hermes().reader(OPENING, [NOW, WEATHER]), [], ""
    for place, character in enumerate(text):
        pieces, rest = reader.feed(character)
        for piece in pieces:
            if piece.name:
                calls.append((piece.name, ""))
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.arguments)
        if reader.over:
            return calls, reader.text, rest + text[place + 1 :]
    return calls, reader.text, rest


@pytest.mark.parametrize(
    ("text", "calls", "rest"),
    [
        ('{"name":"now","arguments":{}}</tool_call>x', [("now", "{}")], "x"),
        ('{"name": "now"}</tool_call>', [("now", "{}")], ""),
        ('{"name": "now", "arguments": null}</tool_call>', [("now", "{}")], ""),
        ('{"name": "now", "parameters": {"a": 1}}</tool_call>', [("now", '{"a": 1}')], ""),
        ('{"arguments": {"a": [1, 2]}, "name": "now"}</tool_call>', [("now", '{"a": [1, 2]}')], ""),
        ('{"id": 3, "name": "now", "arguments": {}, "x": [{}]}</tool_call>', [("now", "{}")], ""),
        ('{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', [("now", '{"a": 1}')], ""),
        ('{"name": "now", "arguments": {"a": "}\\""}}</tool_call>', [("now", '{"a": "}\\""}')], ""),
        ('{"name": "now", "arguments": {}}}\n</tool_call>', [("now", "{}")], ""),
        ('{"name": "now", "arguments": {}}\nbye', [("now", "{}")], "bye"),
        ('{"name": "now", "arguments": {}}\n<tool_call>', [("now", "{}")], "<tool_call>"),
        ('{"name": "now", "arguments": {"a": 1} oops', [("now", '{"a": 1}')], "oops"),
        (
            '[{"name": "now"}, {"name": "get_weather"}]</tool_call>',
            [("now", "{}"), ("get_weather", "{}")],
            "",
        ),
        ("[]</tool_call>x", [], "x"),
    ],
)
def test_what_models_write_is_read(text, calls, rest):
    """Every form that models are known to write gives its calls, and the text after them."""
    assert read(text) == (calls, "", rest)


@pytest.mark.parametrize(
    "text",
    [
        " tag",
        '{"name": "nope", "arguments": {}}',
        '{"name": 3}',
        '{"arguments": {}}',
        '{"arguments": [1], "name": "now"}',
        '{"name": "now", "arguments": "x"}',
        '{name: "now"}',
        '{"name" "now"}',
        "<tool_call>",
    ],
)
def test_what_is_no_call_is_text(text):
    """Nothing of it is lost, and reading goes on at the character that gave it away."""
    calls, kept, rest = read(text)
    assert calls == []
    assert "<tool_call>" + text == kept + rest


def test_an_end_tag_ends_a_call_whose_string_is_left_open():
    """The arguments are as the model wrote them; the next call is not swallowed."""
    text = '{"name": "now", "arguments": {"a": "b}}\n</tool_call>\n<tool_call>'
    assert read(text) == ([("now", '{"a": "b}}')], "", "\n<tool_call>")
    assert read('{"name": "now", "arguments": {\n"a": 1\n}}') == ([("now", '{\n"a": 1\n}')], "", "")


def test_an_unfinished_call_shows_its_arguments_so_far():
    """Arguments are passed on as they come."""
    assert read('{"name": "now", "arguments": {"a": "b') == ([("now", '{"a": "b')], "", "")


def test_the_grammar_is_what_the_reader_reads():
    """One call or several, of the tools that may be called, with their arguments."""
    one = Hermes().grammar([NOW], several=False)
    assert one == Sequence(
        (
            Literal('<tool_call>\n{"name": "now", "arguments": '),
            Json(json.dumps({"type": "object", "additionalProperties": False})),
            Literal("}\n</tool_call>"),
        )
    )
    both = Hermes().grammar([NOW, WEATHER], several=True)
    assert both == Sequence(
        (both.parts[0], Repeat(Sequence((Literal("\n"), both.parts[0])), 0, None))
    )
    assert isinstance(both.parts[0], Choice)
