"""Thoughts, content and calls, however the text is cut."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.dialect.family.hermes import Hermes
from gpu_worker.dialect.parser import Parser
from gpu_worker.dialect.thinking import THINK_TAGS, Thinking, ThoughtMarkers
from gpu_worker.dialect.tools import Tool

NAMES = {"get_weather", "now"}
TOOLS = [Tool(name) for name in NAMES]


def parser(thinking=Thinking.MAYBE, *, tools=True, **options):
    """Return a parser as a request with or without tools gets it."""
    return Parser(
        markers=THINK_TAGS,
        thinking=thinking,
        calls=Hermes() if tools else None,
        tools=TOOLS,
        **options,
    )


def shown(made):
    """Join what has come out: content, reasoning, and name, arguments and end of each call."""
    calls = []
    for piece in made.output.calls:
        if piece.name:
            calls.append([piece.name, "", False])
        calls[-1][1] += piece.arguments
        calls[-1][2] |= piece.complete
    return "".join(made.output.content), "".join(made.output.reasoning), calls


def read(text, *, cut=False, **options):
    """Feed a whole text and its end."""
    made = parser(**options)
    made.feed(text)
    if not made.output.ended:
        made.end(cut=cut)
    return shown(made)


def call(name="now", arguments="{}"):
    """Write a call as a model does."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# Words that begin with no marker's character, and what models do beside markers.
words = st.text(alphabet='ab {}"\\é🐱\n', max_size=8)
spaces = st.sampled_from(["", "\n", "\n\n", " \n"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\{}[]<>/é🐱\n', max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
arguments = st.dictionaries(st.text(alphabet='a"é', max_size=3), values, max_size=3)
dumps = st.sampled_from([json.dumps, lambda value: json.dumps(value, indent=2, ensure_ascii=False)])


@given(
    thought=st.none() | words,
    content=words,
    calls=st.lists(st.tuples(st.sampled_from(sorted(NAMES)), arguments, dumps), max_size=3),
    gap=spaces,
    opened=st.booleans(),
)
def test_a_transcript_is_taken_apart(thought, content, calls, gap, opened):
    """Thought, content and calls as models write them come out as they were put in."""
    text = "" if thought is None else f"\n{thought}{gap}</think>\n\n"
    text = text if opened or thought is None else "<think>" + text
    text += content + gap
    written = [(name, dump(value)) for name, value, dump in calls]
    text += "\n".join(call(*one) for one in written)
    thinking = Thinking.OPEN if opened and thought is not None else Thinking.MAYBE
    expected_content = content + gap
    if thought is not None:
        expected_content = expected_content.lstrip()
    if calls:
        expected_content = expected_content.rstrip()
    assert read(text, thinking=thinking) == (
        expected_content,
        (thought or "").strip(),
        [[name, dumped, True] for name, dumped in written],
    )


fragments = st.sampled_from(
    [
        *["<think>", "</think>", "<tool_call>", "</tool_call>", "<", "<th", "</t", "<tool_call>\n"],
        *['{"name": "now", ', '"arguments": {"a": "}"}}', '{"name": "nope"', '"arguments":', "{}"],
        *['{"arguments": {"b": [1, {}]}, "name": "get_weather"}', "[", "]", ",", '"', "\\", ": "],
        *["\n", " ", "text", "é🐱", "}", "{", call(), call("get_weather", '{\n "city": "Oslo"\n}')],
        *['"arguments": "{\\"a\\": 1}"', "null", "STOP", "ST", '\n</tool_call>"', "</tool_call"],
    ]
)
soups = st.lists(fragments, max_size=14).map("".join)


@given(
    text=soups,
    cuts=st.lists(st.integers(0, 200), max_size=8),
    thinking=st.sampled_from(Thinking),
    tools=st.booleans(),
    most_calls=st.sampled_from([None, 1]),
    stops=st.sampled_from([(), ("STOP",), ("\n", "text{"), ("<tool_call>",), ("</th", "a")]),
    cut=st.booleans(),
)
def test_what_comes_out_depends_on_the_text_alone(
    text, cuts, thinking, tools, most_calls, stops, cut
):
    """After each character the same has come out, whatever the text was cut into before."""
    options = {"thinking": thinking, "tools": tools, "most_calls": most_calls, "stops": stops}
    one_by_one = parser(**options)
    states = [shown(one_by_one)]
    for character in text:
        one_by_one.feed(character)
        states.append(shown(one_by_one))
    in_parts = parser(**options)
    places = sorted({0, *(place for place in cuts if place < len(text)), len(text)})
    for begin, end in itertools.pairwise(places):
        in_parts.feed(text[begin:end])
        assert shown(in_parts) == states[end]
    assert one_by_one.output.ended == in_parts.output.ended
    for made in (one_by_one, in_parts):
        if not made.output.ended:
            made.end(cut=cut)
    assert shown(one_by_one) == shown(in_parts)
    for before, after in itertools.pairwise(states):
        assert after[0].startswith(before[0])
        assert after[1].startswith(before[1])


@given(text=soups)
def test_without_tools_and_thoughts_all_is_content(text):
    """Markers mean nothing to a request that can have neither."""
    assert read(text, thinking=Thinking.NO, tools=False) == (text, "", [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", ("plain", "", [])),
        ("  a  ", ("  a  ", "", [])),
        ("<think>a</think>", ("", "a", [])),
        (" \n<think>\na\n</think>\n\nb\n", ("b\n", "a", [])),
        ("<think></think>b", ("b", "", [])),
        ("a <think>b</think>", ("a <think>b</think>", "", [])),
        ("<thin", ("<thin", "", [])),
        ("<think>a</thin", ("", "a</thin", [])),
        ("<think>a</think><think>b</think>c", ("c", "a\n\nb", [])),
        ("a < b <tool", ("a < b <tool", "", [])),
        ("use <tool_call> tags", ("use <tool_call> tags", "", [])),
        (call() + "\nDone.", ("Done.", "", [["now", "{}", True]])),
        (call() + "\nDone.\n", ("Done.\n", "", [["now", "{}", True]])),
        ("Look:\n" + call() + "\nDone.", ("Look:\n\nDone.", "", [["now", "{}", True]])),
        (
            call() + call("get_weather"),
            ("", "", [["now", "{}", True], ["get_weather", "{}", True]]),
        ),
        (call("nope"), (call("nope"), "", [])),
        ("<think>a" + call(), ("", "a", [["now", "{}", True]])),
        ("<think>a <tool_call> b</think>c", ("c", "a <tool_call> b", [])),
        (call() + "<think>b</think>c", ("c", "b", [["now", "{}", True]])),
        ("<think>a" + call() + "\n</think>\n\nb", ("b", "a", [["now", "{}", True]])),
        ("\n</think>\n\nb", ("b", "", [])),
        ("b</think>", ("b</think>", "", [])),
        ("</thin", ("</thin", "", [])),
    ],
)
def test_markers(text, expected):
    """Each rule of the states, on a text of its own."""
    assert read(text) == expected


def test_a_thought_that_the_prompt_opened_need_not_end():
    """All of it is reasoning until the end marker."""
    assert read("a\n<think>b", thinking=Thinking.OPEN) == ("", "a\n<think>b", [])


def test_with_thinking_off_its_marker_is_text():
    """The prompt has closed the thought: what looks like another is what the model says."""
    assert read("<think>y</think>", thinking=Thinking.NO) == ("<think>y</think>", "", [])


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("a <tool", "a", ""),
        ("<thi", "", ""),
        ("<think>a</th", "", "a"),
        ('a<tool_call>\n{"na', "a", ""),
        ("a\n", "a\n", ""),
        ("a b", "a b", ""),
    ],
)
def test_max_tokens_cuts_a_marker_away(text, content, reasoning):
    """Half a marker is not shown, and the text before it is."""
    assert read(text, cut=True)[:2] == (content, reasoning)


def test_one_call_ends_an_answer_that_may_have_only_one():
    """The answer ends with the arguments of its first call."""
    made = parser(most_calls=1)
    made.feed("a\n" + call("get_weather", '{"city": "Oslo"}') + "\n" + call())
    assert made.output.ended
    assert shown(made) == ("a", "", [["get_weather", '{"city": "Oslo"}', True]])


@pytest.mark.parametrize(
    ("text", "stops", "content"),
    [
        ("a\n", ["\n"], "a"),
        ("<think>x STOP</think>\n\na STOP b", ["STOP"], "a "),
        ("<think>x</think>\n\na", ["\n"], "a"),
        (call("now", '{"a": "STOP"}') + "\nb STOP", ["STOP"], "b "),
        ("ST" + call(), ["STOP"], "ST"),
        ("ST" + call() + "OP", ["STOP"], "ST\n\nOP"),
        ("a <tool_call> b", ["_call> b"], "a <tool"),
    ],
)
def test_stop_texts_are_looked_for_in_content_alone(text, stops, content):
    """Neither thoughts nor calls nor the whitespace after them end an answer."""
    assert read(text, stops=stops)[0] == content


CHANNEL = ThoughtMarkers(begin="<|c>", end="<c|>", label="thought", are_control_tokens=True)


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("<|c>thought\na<c|>b", "b", "a"),
        ("<|c>thought<c|>b", "b", ""),
        ("<|c><c|>b", "b", ""),
        ("<|c>though <c|>b", "b", "though"),
        ("a<|c>thought\nb<|c>thought\nc<c|>d", "a\n\nd", "b\n\nc"),
        ("a<c|>b", "ab", ""),
    ],
)
def test_thoughts_between_control_tokens(text, content, reasoning):
    """Neither the tokens nor a label are shown, wherever they stand."""
    for thinking in (Thinking.NO, Thinking.MAYBE):
        made = Parser(markers=CHANNEL, thinking=thinking, calls=Hermes())
        for character in text:
            made.feed(character)
        made.end(cut=False)
        assert shown(made) == (content, reasoning, [])


def test_a_thought_that_is_open_may_be_opened_again():
    """The prompt has opened it, and the model does as well."""
    made = Parser(markers=CHANNEL, thinking=Thinking.OPEN)
    made.feed("a<|c>thought\nb<c|>c")
    made.end(cut=False)
    assert shown(made) == ("c", "a\n\nb", [])


def test_plain_content_costs_the_same_for_every_token():
    """Nothing is held back of a text without markers, and nothing is looked at twice."""
    made = parser()
    for number in range(1000):
        made.feed(f"word {number};")
        assert len(made.output.content) == number + 1
