"""Mistral's answers: thoughts, content and calls in all their forms, however they are cut."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transcripts import Told, Transcripts

from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.family import mistral
from gpu_worker.dialect.thinking import Thinking
from gpu_worker.dialect.tools import Tool

TEMPLATES = Path(__file__).parents[4] / "templates"
NOW, WEATHER, GET = Tool("now"), Tool("get_weather"), Tool("get")
TOOLS = [NOW, WEATHER, GET]
OSLO = '{"city": "Oslo"}'


def transcripts_of(name):
    """Return answers of a model with that template."""
    return Transcripts(
        mistral.profile(ChatTemplate((TEMPLATES / f"{name}.jinja").read_text())), TOOLS
    )


v13 = transcripts_of("mistral-v13-reasoning")
magistral_2506 = transcripts_of("magistral-2506")
unthinking = transcripts_of("mistral-v3")


def named(name="now", arguments="{}"):
    """Write a call as models do from tokenizer v11 on."""
    return f"[TOOL_CALLS]{name}[ARGS]{arguments}"


def with_id(name="now", arguments="{}"):
    """Write a call as the templates of tokenizer v11 do."""
    return f"[TOOL_CALLS]{name}[CALL_ID]a1B2c3D4e[ARGS]{arguments}"


def without_args(name="now", arguments="{}"):
    """Write a call as some models do that leave a marker out."""
    return f"[TOOL_CALLS]{name}{arguments}"


def listed(*calls, blank="", ids=False):
    """Write calls as models do up to tokenizer v7."""
    end = ', "id": "a1B2c3D4e"}' if ids else "}"
    written = (f'{{"name": "{name}", "arguments": {arguments}{end}' for name, arguments in calls)
    return f"[TOOL_CALLS]{blank}[{', '.join(written)}]"


def calls(*written):
    """Return complete calls, as a client is told of them."""
    return tuple((name, arguments, True) for name, arguments in written)


ONE, BOTH = calls(("now", "{}")), calls(("now", "{}"), ("get_weather", OSLO))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (named(), Told(calls=ONE)),
        (with_id(), Told(calls=ONE)),
        (without_args(), Told(calls=ONE)),
        (listed(("now", "{}")), Told(calls=ONE)),
        (listed(("now", "{}"), blank=" ", ids=True), Told(calls=ONE)),
        (listed(("now", "{}"), ("get_weather", OSLO), ids=True), Told(calls=BOTH)),
        (named() + named("get_weather", OSLO), Told(calls=BOTH)),
        (with_id() + with_id("get_weather", OSLO), Told(calls=BOTH)),
        (without_args() + without_args("get_weather", OSLO), Told(calls=BOTH)),
        (f"{named()}\n{named('get_weather', OSLO)}\n", Told(calls=BOTH)),
        (listed(("now", "{}")) + listed(("get_weather", OSLO)), Told(calls=BOTH)),
        ("[TOOL_CALLS] now [ARGS] {} ", Told(calls=ONE)),
        ("[TOOL_CALLS]now\n{}", Told(calls=ONE)),
        ("[TOOL_CALLS]now[CALL_ID]a1B2c3D4e{}", Told(calls=ONE)),
        ('[TOOL_CALLS]{"name": "now", "arguments": {}}', Told(calls=ONE)),
        ('[TOOL_CALLS][{"id": "x", "arguments": {}, "name": "now"}]', Told(calls=ONE)),
        ('[TOOL_CALLS][{"name": "now"}]', Told(calls=ONE)),
        (named("get", "{}"), Told(calls=calls(("get", "{}")))),
        ("[TOOL_CALLS]now", Told(calls=ONE)),
        ("[TOOL_CALLS]now[ARGS]", Told(calls=ONE)),
        ("[TOOL_CALLS]now[ARGS]" + named("get_weather", OSLO), Told(calls=BOTH)),
        ("[TOOL_CALLS]now[ARGS]Done.", Told("Done.", calls=ONE)),
        ("Let me see.\n" + named(), Told("Let me see.", calls=ONE)),
        (f"{named()}\nDone.\n", Told("Done.\n", calls=ONE)),
        (
            named("get_weather", '{"text": "[TOOL_CALLS]now[ARGS]{}"}'),
            Told(calls=calls(("get_weather", '{"text": "[TOOL_CALLS]now[ARGS]{}"}'))),
        ),
        (named("nope"), Told("nope{}")),
        (with_id("nope"), Told("nope{}")),
        (listed(("nope", "{}")), Told('[{"name": "nope", "arguments": {}}]')),
        (
            listed(("now", "{}"), ("nope", "{}")),
            Told('{"name": "nope", "arguments": {}}]', calls=ONE),
        ),
        ("a [TOOL_CALLS] b", Told("a  b")),
        ("[TOOL_CALLS]", Told()),
        ("[TOOL_CALLS][]", Told()),
        ("[TOOL_CALLS][1]", Told("[1]")),
        (f"[TOOL_CALLS]{named()}", Told(calls=ONE)),
        (f"[TOOL_CALLS][{named()}", Told("[", calls=ONE)),
        (f"[TOOL_CALLS]x y {named()}", Told("x y", calls=ONE)),
        (f"[TOOL_CALLS]{'x' * 70}[ARGS]", Told("x" * 70 + "[ARGS]")),
        ("[TOOL_CALLS]now[AR", Told("now[AR")),
        ("usage: run [ARGS] [CALL_ID]", Told("usage: run [ARGS] [CALL_ID]")),
        ("a[0] = [TOOL", Told("a[0] = [TOOL")),
        ("[THINK]a[/THINK]b", Told("b", "a")),
        ("[THINK]\na\n[/THINK]\n\nb", Told("b", "a")),
        ("[THINK][/THINK]b", Told("b")),
        ("a[THINK]b[/THINK]c", Told("a\n\nc", "b")),
        ("[THINK]a[THINK]b[/THINK]c", Told("c", "a\n\nb")),
        ("[THINK]a [TOOL_CALLS] b[/THINK]c", Told("c", "a  b")),
        (f"[THINK]a[/THINK]{named()}", Told("", "a", ONE)),
        (f"[THINK]a[/THINK]b{named()}[THINK]c[/THINK]d", Told("b\n\nd", "a\n\nc", ONE)),
        ("[TOOL_CALLS][THINK]a[/THINK]b", Told("b", "a")),
        ("a[/THINK]b", Told("ab")),
        ("[THINK]a", Told("", "a")),
        ("[THI", Told("[THI")),
    ],
)
@pytest.mark.parametrize("markers_are_tokens", [True, False])
def test_what_models_write_is_read(text, told, markers_are_tokens):
    """Every form that models are known to write, and what looks like one; however it is cut."""
    for cuts in ([], range(0, 200, 3)):
        assert told == v13.check(text, cuts=cuts, markers_are_tokens=markers_are_tokens)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(
            listed(("get_weather", '{"a": 3, "b": 4}')),
            Told(calls=calls(("get_weather", '{"a": 3, "b": 4}'))),
            id="vllm#13622: whole numbers in a list",
        ),
        pytest.param(
            f"Looking.{named('get_weather', OSLO)}",
            Told("Looking.", calls=calls(("get_weather", OSLO))),
            id="vllm#20028, vllm#29968: calls of tokenizer v11 in a stream",
        ),
        pytest.param(
            named("get_weather", '{"city": "Paris, France"}'),
            Told(calls=calls(("get_weather", '{"city": "Paris, France"}'))),
            id="Rapid-MLX#579, vllm-mlx PR#631: the marker is no part of the name",
        ),
        pytest.param(
            f"[THINK]a[/THINK]{named()}[THINK]b[/THINK]c",
            Told("c", "a\n\nb", ONE),
            id="vllm PR#45609: a second thought after a call",
        ),
        pytest.param(
            "No thought here.",
            Told("No thought here."),
            id="vllm PR#44596: an answer without a thought",
        ),
        pytest.param(
            f"[THINK]I call.{named()}[/THINK]Done.",
            Told("Done.", "I call.", ONE),
            id="llama.cpp#29248: a call within a thought",
        ),
        pytest.param(
            listed(("get_weather", '{"expression": "2+3"}'), blank=" "),
            Told(calls=calls(("get_weather", '{"expression": "2+3"}'))),
            id="mlx-lm#1374: a list of calls",
        ),
        pytest.param(
            without_args("get_weather", '{"name": "bar"}'),
            Told(calls=calls(("get_weather", '{"name": "bar"}'))),
            id="ollama#16932: an argument that is called name",
        ),
        pytest.param(
            named("get_weather", '{"city": Oslo, "n": 01}'),
            Told(calls=calls(("get_weather", '{"city": Oslo, "n": 01}'))),
            id="vllm mistral_tool_parser: arguments that are no JSON are still a call",
        ),
    ],
)
@pytest.mark.parametrize("markers_are_tokens", [True, False])
def test_what_other_parsers_got_wrong(text, told, markers_are_tokens):
    """Each from a public bug report, in one piece and in many."""
    for cuts in ([], range(200), range(0, 200, 5)):
        assert told == v13.check(text, cuts=cuts, markers_are_tokens=markers_are_tokens)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (named("get_weather", OSLO), f"get_weather{OSLO}"),
        (with_id("get_weather", OSLO), f"get_weather{OSLO}"),
        (listed(("now", "{}")), '[{"name": "now", "arguments": {}}]'),
        (f"a[TOOL_CALLS]{named()}", "anow{}"),
        ("a[TOOL_CALLS]", "a"),
    ],
)
@pytest.mark.parametrize("answers", [v13, unthinking])
def test_without_tools_no_marker_leaks(answers, text, content):
    """With tool_choice none a call is the text that it is made of (vllm PR#37081)."""
    assert answers.check(text, cuts=range(0, 99, 4), tools=[]) == Told(content)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<think>\na\n</think>\nb", Told("b", "a")),
        (f"<think>\na\n</think>\n{with_id()}", Told("", "a", ONE)),
        ("see <think>a</think>", Told("see <think>a</think>")),
        ("[THINK]a", Told("[THINK]a")),
    ],
)
def test_magistral_2506_thinks_between_plain_tags(text, told):
    """Its tags are text, so that they count only where an answer begins."""
    assert told == magistral_2506.check(text, cuts=range(0, 99, 4))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a[TOOL_CA", Told("a")),
        ("[THI", Told()),
        ("[THINK]a[/TH", Told("", "a")),
        ("a[TOOL_CALLS]", Told("a")),
        ("a[TOOL_CALLS]now", Told("a")),
        ("a[TOOL_CALLS]now[ARGS]", Told("a")),
        ("a[TOOL_CALLS]now[CALL_ID]a1B", Told("a")),
        ('[TOOL_CALLS][{"name": "now"', Told()),
        ('[TOOL_CALLS]now[ARGS]{"a": "b', Told(calls=(("now", '{"a": "b', False),))),
        (
            '[TOOL_CALLS][{"name": "now", "arguments": {"a": "b',
            Told(calls=(("now", '{"a": "b', False),)),
        ),
        (listed(("now", "{}")).removesuffix("]"), Told(calls=ONE)),
    ],
)
def test_max_tokens_cuts_a_call_away(text, told):
    """Half a call is not shown as content; what has been told of it stays."""
    assert told == v13.check(text, cut=True)


@pytest.mark.parametrize("text", [named() * 2, listed(("now", "{}"), ("now", "{}"))])
def test_one_call_ends_an_answer_that_may_have_only_one(text):
    """The answer ends with the arguments of its first call."""
    assert v13.check(f"a{text}", most_calls=1) == Told("a", calls=ONE)


@pytest.mark.parametrize(
    "text", [named("get", '{"a": "'), '[TOOL_CALLS] [{"name": "get", "arguments": {"a": "']
)
def test_arguments_come_as_they_are_written(text):
    """A long text in arguments does not wait for its end, in either form of a call."""
    answer = v13.answer()
    answer.feed(v13.token_ids(text))
    for letter in "Oslo":
        (piece,) = answer.feed(v13.token_ids(letter)).calls
        assert piece.arguments == letter


def test_a_name_comes_once_and_complete():
    """Though it is written letter by letter, and one tool's name begins another's."""
    answer = v13.answer()
    pieces = [
        piece
        for token in v13.token_ids(named("get_weather"))
        for piece in answer.feed([token]).calls
    ]
    assert [piece.name for piece in pieces if piece.name] == ["get_weather"]


# Words that begin with no marker's character.
words = st.text('ab {}"\\;é🐱\n', max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a"\\{}[]é🐱\n', max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
arguments = st.dictionaries(st.text('a"é', max_size=3), values, max_size=3)
dumps = st.sampled_from([json.dumps, lambda value: json.dumps(value, indent=2, ensure_ascii=False)])
written_calls = st.lists(
    st.tuples(st.sampled_from([tool.name for tool in TOOLS]), arguments, dumps), max_size=3
)
forms = st.sampled_from(
    [
        *(lambda made, form=form: "".join(form(*one) for one in made) for form in (named, with_id)),
        lambda made: "\n".join(without_args(*one) for one in made),
        lambda made: listed(*made) if made else "",
        lambda made: listed(*made, blank=" ", ids=True) if made else "",
    ]
)


@given(
    thought=st.none() | words,
    content=words,
    made=written_calls,
    form=forms,
    gap=st.sampled_from(["", "\n", " \n"]),
    cuts=st.lists(st.integers(0, 300), max_size=6),
    died_at=st.integers(0, 300),
    markers_are_tokens=st.booleans(),
)
@settings(max_examples=60)
def test_a_transcript_is_taken_apart(
    thought, content, made, form, gap, cuts, died_at, markers_are_tokens
):
    """Thought, content and calls come out as they were put in."""
    dumped = [(name, dump(value)) for name, value, dump in made]
    text = "" if thought is None else f"[THINK]{thought}[/THINK]"
    text += content + gap + form(dumped)
    expected = content + gap if thought is None else (content + gap).lstrip()
    told = v13.check(text, cuts=cuts, died_at=died_at, markers_are_tokens=markers_are_tokens)
    assert told == Told(
        expected.rstrip() if made else expected, (thought or "").strip(), calls(*dumped)
    )


fragments = st.sampled_from(
    [
        *["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "[TOOL_", "[/TH", "[AR"],
        *["now", "get", "_weather", "nope", "a1B2c3D4e", "{", "}", '{"a": "}"}', "{}", "[", "]"],
        *[
            '{"name": "now"',
            ', "arguments": ',
            '"id": 3',
            '"',
            "\\",
            ", ",
            "\n",
            " ",
            "text",
            "é🐱",
        ],
        *["STOP", "ST", named(), with_id("get_weather", OSLO), listed(("get", "{}"), blank=" ")],
    ]
)


@given(
    text=st.lists(fragments, max_size=12).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    died_at=st.integers(0, 200),
    thinking=st.sampled_from(Thinking),
    tools=st.sampled_from([TOOLS, [NOW], []]),
    most_calls=st.sampled_from([None, 1]),
    stops=st.sampled_from([(), ("STOP",), ("\n", "text{"), ("[TOOL_CALLS]",), ("]", "a")]),
    cut=st.booleans(),
    markers_are_tokens=st.booleans(),
    answers=st.sampled_from([v13, magistral_2506, unthinking]),
)
@settings(max_examples=200)
def test_what_is_told_depends_on_the_text_alone(
    text, cuts, died_at, thinking, tools, most_calls, stops, cut, markers_are_tokens, answers
):
    """However it is cut, and wherever another worker takes over; no marker is ever shown."""
    told = answers.check(
        text,
        cuts=cuts,
        died_at=died_at,
        cut=cut,
        markers_are_tokens=markers_are_tokens,
        thinking=thinking,
        tools=tools,
        most_calls=most_calls,
        stops=stops,
    )
    shown = told.content + told.reasoning
    assert "[TOOL_CALLS]" not in shown
    assert answers is not v13 or not ("[THINK]" in shown or "[/THINK]" in shown)
    assert not (told.calls and not tools)
