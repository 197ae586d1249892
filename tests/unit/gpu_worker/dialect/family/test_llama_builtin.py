"""Calls that are written like a function's in Python, as Llama does for its built-in tools."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.dialect.family.llama_builtin import BuiltinCall
from gpu_worker.dialect.tools import Tool

SEARCH = Tool(
    "brave_search",
    parameters={
        "properties": {
            "query": {"type": "string"},
            "count": {"type": "integer"},
            "tags": {"type": "array"},
            "safe": {"type": "boolean"},
        }
    },
)


def read(text, *, steps=1, ended=False):
    """Return name, argument text, whether it is complete, and the text that is not the call's."""
    call, at, pieces = BuiltinCall([Tool("brave"), SEARCH]), 0, []
    while at < len(text) and not call.over:
        at = call.feed(text[: at + steps], at)
        pieces += call.take_pieces()
    if ended:
        call.end()
        pieces += call.take_pieces()
    name = "".join(piece.name for piece in pieces)
    arguments = "".join(piece.arguments for piece in pieces)
    return name, arguments, any(piece.complete for piece in pieces), text[at:]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("()", {}),
        ("( )", {}),
        ('(query="gold")', {"query": "gold"}),
        ("(query='gold')", {"query": "gold"}),
        ('( query = "gold" , count = 3 )', {"query": "gold", "count": 3}),
        ('(query="gold", count="3")', {"query": "gold", "count": 3}),
        ('(count="many")', {"count": "many"}),
        ("(safe=True, tags=['a', \"b)\"])", {"safe": True, "tags": ["a", "b)"]}),
        ('(tags=["a", {"b": "],)"}], safe=false)', {"tags": ["a", {"b": "],)"}], "safe": False}),
        ("(query=gold)", {"query": "gold"}),
        ('(other="3")', {"other": "3"}),
        ("(other=3, more=None)", {"other": 3, "more": None}),
        ('(query="say "hi", or not")', {"query": 'say "hi", or not'}),
        (r'(query="say \"hi\", or not")', {"query": 'say "hi", or not'}),
        (r'(query="C:\temp\")', {"query": "C:\\temp\\"}),
        ('(query="it\'s\n\té🐱")', {"query": "it's\n\té🐱"}),
        ('(query="",)', {"query": ""}),
    ],
)
@pytest.mark.parametrize("steps", [1, 3, 1000])
def test_arguments_become_json(text, arguments, steps):
    """Texts stay as they are between their quotes, other values have the type of the schema."""
    name, found, complete, rest = read(f"brave_search.call{text}; and", steps=steps)
    assert (name, json.loads(found), complete, rest) == ("brave_search", arguments, True, "; and")


@pytest.mark.parametrize(
    "text", ["brave_search", "brave_search.run()", 'brave_search.call("gold")', "print(1)", "-"]
)
def test_what_is_no_call_has_no_pieces(text):
    """It fails where it shows, and nobody has been told of a call."""
    assert read(text)[:3] == ("", "", False)


def test_what_goes_on_as_no_call_does_ends_it():
    """What had been told of it stays."""
    assert read('brave_search.call(count=3, "x")') == (
        "brave_search",
        '{"count": 3}',
        True,
        '"x")',
    )


@pytest.mark.parametrize(
    ("text", "arguments", "complete"),
    [
        ('query="gold"', '{"query": "gold"}', True),
        ("count=3", '{"count": 3}', True),
        ('query="gold', '{"query": "gold', False),
    ],
)
def test_the_closing_bracket_may_be_missing_at_the_end(text, arguments, complete):
    """The model's end of its message ends a call between two arguments, not within a text."""
    assert read(f"brave_search.call({text}", ended=True)[1:3] == (arguments, complete)


@given(query=st.text("ab\"'\\ ,=()é\n", max_size=12))
@settings(max_examples=100)
def test_any_text_is_passed_on_unless_it_looks_like_the_end(query):
    """Templates print texts as they are, quotes and all."""
    for quote in ('")', '",', '" ', "\\", '"'):
        query = query.replace(quote, "x")
    _, arguments, complete, _ = read(f'brave_search.call(query="{query}")')
    assert complete
    assert json.loads(arguments) == {"query": query}
