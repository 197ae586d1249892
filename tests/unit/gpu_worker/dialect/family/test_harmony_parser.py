"""Answers in harmony, well-formed and otherwise, however they are cut."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transcripts import Told, Transcripts

from gpu_worker.dialect import families
from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.family.harmony_parser import LONGEST_HEADER
from gpu_worker.dialect.thinking import Thinking
from gpu_worker.dialect.tools import Tool

TEMPLATE = Path(__file__).parents[4] / "templates" / "gpt-oss.jinja"
GPT_OSS = families.find(ChatTemplate(TEMPLATE.read_text(encoding="utf-8")))
TOOLS = [Tool("now"), Tool("get_weather"), Tool("web-browsing")]
MARKERS = GPT_OSS.markers
transcripts = Transcripts(GPT_OSS, TOOLS)

NEXT = "<|end|><|start|>assistant"
THINK = "<|channel|>analysis<|message|>"
SAY = "<|channel|>final<|message|>"
TELL = "<|channel|>commentary<|message|>"
CALL = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>"
NOW = (("now", "{}", True),)


def call(name="now", arguments="{}"):
    """Write a call in the form of the documentation."""
    to = f"to=functions.{name}"
    return f"<|channel|>commentary {to} <|constrain|>json<|message|>{arguments}<|call|>"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{SAY}Hi<|return|>", Told("Hi")),
        (f"{SAY}Hi", Told("Hi")),
        (f"{SAY}Hi\n<|return|>", Told("Hi\n")),
        (f"{THINK}a{NEXT}{SAY}b<|return|>", Told("b", "a")),
        (f"{THINK}a{NEXT}{THINK}b{NEXT}{SAY}c<|return|>", Told("c", "a\n\nb")),
        (f"{TELL}a{NEXT}{SAY}b<|return|>", Told("a\n\nb")),
        (f"{THINK}a{NEXT}{TELL}b{NEXT}{call()}", Told("b", "a", NOW)),
        (f"{THINK}a{NEXT}{call()}", Told("", "a", NOW)),
        (" to=functions.now<|channel|>commentary json<|message|>{}<|call|>", Told(calls=NOW)),
        (
            " to=functions.now<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
            Told(calls=NOW),
        ),
        (
            f"{THINK}a{NEXT} to=functions.now<|channel|>commentary<|message|>{{}}<|call|>",
            Told("", "a", NOW),
        ),
        ("<|channel|>commentary to=functions.now<|message|>{}<|call|>", Told(calls=NOW)),
        ("<|channel|>commentary to=functions.now json<|message|>{}<|call|>", Told(calls=NOW)),
        ("<|channel|>commentary to=now<|message|>{}<|call|>", Told(calls=NOW)),
        (f"{CALL}<|call|>", Told(calls=NOW)),
        (f"{CALL} \n <|call|>", Told(calls=NOW)),
        (f"{CALL}{{}} \n<|call|>", Told(calls=NOW)),
        (f"{CALL}{{}}", Told(calls=NOW)),
        (f"{CALL}\n{{\n}}\nThat is all.<|call|>", Told(calls=(("now", "{\n}", True),))),
        (f'{CALL}"a" \n<|call|>', Told(calls=(("now", '"a"', True),))),
        (call() + f"<|start|>assistant{call()}", Told(calls=NOW + NOW)),
        (f"{SAY}if a < b or <|b|>: <|en", Told("if a < b or <|b|>: <|en")),
        ("", Told()),
        ("<|return|>", Told()),
        ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", Told("{}")),
        (f"{TELL}{{}}<|end|>", Told("{}")),
        (
            f"{THINK}a<|end|><|start|>user<|message|>And?{NEXT}{SAY}b<|return|>",
            Told("b", "a\n\nAnd?"),
        ),
    ],
)
@pytest.mark.parametrize("markers_are_tokens", [True, False])
def test_what_models_write_is_read(text, told, markers_are_tokens):
    """Every form of a header that is documented, and every kind of message."""
    for cuts in ([], range(0, 200, 3)):
        assert told == transcripts.check(text, cuts=cuts, markers_are_tokens=markers_are_tokens)


REFUSAL = "...\n\nThe user wants something that is not allowed. According to policy, we refuse."
LONG = "This goes on and on. " * (LONGEST_HEADER // 10)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(
            f"<|channel|>analysis need to look<|message|>a{NEXT}{SAY}b<|return|>",
            Told("b", "a"),
            id="openai/harmony#38: words in a header",
        ),
        pytest.param(
            "<|channel|>commentary\u2013\u2013commentary to=functions.now json<|message|>{}<|call|>",
            Told(calls=NOW),
            id="openai/harmony#38: a dash and a second channel",
        ),
        pytest.param(
            "<|channel|>commentary to=functions.now I need code json<|message|>{}<|call|>",
            Told(calls=NOW),
            id="vllm#23567: words after the recipient",
        ),
        pytest.param(
            " to=functions.web-browsing<|channel|>commentary to=functions.web-browsing code"
            "<|message|>{}<|call|>",
            Told(calls=(("web-browsing", "{}", True),)),
            id="vllm#51977: a recipient in both parts",
        ),
        pytest.param(
            f"<|channel|>??{NEXT}{THINK}a{NEXT}{SAY}b<|return|>",
            Told("b", "??\n\na"),
            id="llama.cpp#27720: no channel, then a message",
        ),
        pytest.param(
            "<|channel|>commentary?<|message|>a<|return|>",
            Told("a"),
            id="llama.cpp#27720: a channel with a question mark",
        ),
        pytest.param(
            f"<|channel|>commentary?commentary?{NEXT}{SAY}b<|return|>",
            Told("b", "?commentary?"),
            id="llama.cpp#27720: a channel twice, then a message",
        ),
        pytest.param(
            f"<|channel|>commentary to=assistant<|channel|>commentary?...{NEXT}{SAY}b<|return|>",
            Told("b", "?..."),
            id="llama.cpp#27720: addressed to itself, then a message",
        ),
        pytest.param(
            "<|channel|>commentary to=assistant<|message|>a<|return|>",
            Told("a"),
            id="llama.cpp PR#21286: addressed to itself",
        ),
        pytest.param(
            "<|channel|>I think that<|message|>a<|return|>",
            Told("a"),
            id="llama.cpp#27720: free text for a channel",
        ),
        pytest.param(
            "<|channel|>final Hello world<|return|>",
            Told("Hello world"),
            id="openai/harmony PR#82: no message marker, and the answer ends",
        ),
        pytest.param(
            f"<|channel|>analysis Hm.{NEXT}{SAY}b<|return|>",
            Told("b", "Hm."),
            id="openai/harmony PR#82: no message marker, and a message follows",
        ),
        pytest.param(
            f"{REFUSAL}{NEXT}{THINK}We refuse.{NEXT}{SAY}No.<|return|>",
            Told("No.", f"{REFUSAL}\n\nWe refuse."),
            id="openai/harmony#80: a thought without a header",
        ),
        pytest.param(
            '{"a": 1}<|return|>', Told('{"a": 1}'), id="llama.cpp#25321: an answer without a header"
        ),
        pytest.param(f"{LONG}<|return|>", Told(LONG), id="llama.cpp#25321: and a long one"),
        pytest.param(
            "<|channel|>analysis<|channel|>final<|message|>a<|return|>",
            Told("", "a"),
            id="openai/harmony PR#97: of two channels the first",
        ),
        pytest.param(
            "<|channel|>commentary<|channel|>analysis to=functions.now<|message|>{}<|call|>",
            Told(calls=NOW),
            id="openai/harmony PR#97: and a recipient",
        ),
        pytest.param(
            f"{call()}commentary to=functions.get_weather<|message|>{{}}<|call|>",
            Told(calls=(*NOW, ("get_weather", "{}", True))),
            id="openai/harmony#60: a channel in plain letters where a start belongs",
        ),
        pytest.param(
            f"{THINK}a<|end|>Well.<|start|>assistant{SAY}b<|return|>",
            Told("b", "a\n\nWell."),
            id="openai/harmony#60: a text where a start belongs",
        ),
        pytest.param(
            f"{THINK}a<|end|><|end|>.<|end|><|start|><|start|>assistant{SAY}b<|return|><|return|>",
            Told("b", "a\n\n."),
            id="vllm#22519, vllm PR#43408: markers twice",
        ),
        pytest.param(
            " to=functions.now<|channel|>commentary<|message|>{}<|call|>",
            Told(calls=NOW),
            id="vllm#32587, vllm PR#35906: a channel in the name of a function",
        ),
        pytest.param(
            "<|channel|>commentary <|constrain|>json<|message|>{}<|return|>",
            Told("{}"),
            id="vllm PR#35906: a type for a recipient",
        ),
        pytest.param(
            f"{THINK}a<|channel|>final<|message|>b<|return|>",
            Told("b", "a"),
            id="vllm PR#35906: no end and no start between messages",
        ),
        pytest.param(
            f"{SAY}b<|end|>That is it.<|return|>",
            Told("b\n\nThat is it."),
            id="vllm PR#35906: a text after the last message",
        ),
        pytest.param(
            f"Hm, hm.{SAY}b<|return|>",
            Told("b", "Hm, hm."),
            id="vllm PR#35906: a text before the first message",
        ),
        pytest.param(
            'commentary to=functions.now json{"a": 1}<|call|>',
            Told(calls=(("now", '{"a": 1}', True),)),
            id="Rapid-MLX#480: no markers in a header",
        ),
        pytest.param(
            'analysisneed itassistantcommentary to=functions.now json{"a": 1}',
            Told(calls=(("now", '{"a": 1}', True),)),
            id="Rapid-MLX#480: no markers at all",
        ),
        pytest.param(
            "<|channel|>commentary to=functions.now<|constrain|>json<|message|>{}<|call|>",
            Told(calls=NOW),
            id="lmstudio#942: no blank before the type",
        ),
        pytest.param(
            f'{CALL}{{"a": {{"b": "c"<|call|>',
            Told(calls=(("now", '{"a": {"b": "c"', True),)),
            id="lmstudio#942: JSON without its end",
        ),
        pytest.param(
            "<|channel|>commentary to=functions.nowjson<|message|>{}<|call|>",
            Told(calls=NOW),
            id="llama.cpp PR#15158: the type glued to the name",
        ),
        pytest.param(
            "<|channel|>analysis to=functions.now code<|message|>\n{}<|call|>",
            Told(calls=NOW),
            id="vllm-mlx#562: a call on the channel of thoughts",
        ),
        pytest.param(
            "<|channel|>commentary to=functions.now\n<|constrain|>json\n<|message|>{}\n<|call|>",
            Told(calls=NOW),
            id="vllm-mlx PR#50: line breaks in a header",
        ),
        pytest.param(
            "<|channel|><|message|>a<|return|>", Told("a"), id="sglang#8914: no name of a channel"
        ),
        pytest.param(
            "<|channel|>commentary to=functions.nope<|message|>{}<|call|>",
            Told("", "{}"),
            id="odysseus#4522: arguments for a function that nobody has",
        ),
        pytest.param(
            "<|channel|>analysis to=browser.search code<|message|>{}<|call|>",
            Told("", "{}"),
            id="a tool that the model knows from its training",
        ),
    ],
)
@pytest.mark.parametrize("markers_are_tokens", [True, False])
def test_what_other_parsers_got_wrong(text, told, markers_are_tokens):
    """Each from a public report; OpenAI's library raises on most of them."""
    for cuts in ([], range(300), range(0, 300, 7)):
        assert told == transcripts.check(text, cuts=cuts, markers_are_tokens=markers_are_tokens)


words = st.text('ab {}"<|é🐱\n', max_size=8)
texts = words.map(str.strip).filter(bool)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a"\\{}[]<|é🐱\n', max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
arguments = st.dictionaries(st.text('a"é', max_size=3), values, max_size=3)
dumps = st.sampled_from([json.dumps, lambda value: json.dumps(value, indent=2, ensure_ascii=False)])
# What stands before and after the channel of a call, and which tool it is of.
headers = st.tuples(
    st.booleans(),
    st.sampled_from(["analysis", "commentary"]),
    st.sampled_from([" <|constrain|>json", "<|constrain|>json", " json", " code", ""]),
    st.sampled_from(TOOLS),
)


def header(to_first, channel, kind, tool):
    """Write the header of a call."""
    to = f" to=functions.{tool.name}"
    before, after = (to, "") if to_first else ("", to)
    return f"{before}<|channel|>{channel}{after}{kind}<|message|>"


@given(
    thoughts=st.lists(texts, max_size=2),
    preambles=st.lists(texts, max_size=2),
    answer=st.none() | words,
    made=st.lists(st.tuples(headers, arguments, dumps), max_size=2),
    cuts=st.lists(st.integers(0, 400), max_size=6),
    died_at=st.integers(0, 400),
    markers_are_tokens=st.booleans(),
)
@settings(max_examples=60)
def test_a_transcript_is_taken_apart(
    thoughts, preambles, answer, made, cuts, died_at, markers_are_tokens
):
    """Thoughts, content and calls come out as they were put in."""
    messages = [f"{THINK}{text}<|end|>" for text in thoughts]
    messages += [f"{TELL}{text}<|end|>" for text in preambles]
    calls = [(form[3].name, dump(value), True) for form, value, dump in made]
    messages += [
        f"{header(*form)}{text}<|call|>"
        for (form, *_), (_, text, _) in zip(made, calls, strict=True)
    ]
    messages += [] if answer is None else [f"{SAY}{answer}<|return|>"]
    told = transcripts.check(
        "<|start|>assistant".join(messages),
        cuts=cuts,
        died_at=died_at,
        markers_are_tokens=markers_are_tokens,
    )
    said = [*preambles, *([answer.lstrip()] if answer and answer.strip() else [])]
    assert told.content.rstrip() == "\n\n".join(said).rstrip()
    assert told.reasoning == "\n\n".join(thoughts)
    assert told.calls == tuple(calls)


fragments = st.sampled_from(
    [
        *sorted(MARKERS),
        *["<|", "<", "<|chan", "nel|>", "|>", "assistant", "analysis", "commentary", "final"],
        *[" to=functions.now", " to=", "functions.", "get_weather", " json", "user", " ", "\n"],
        *["{", "}", '{"a": "b"}', '"', "text", "é🐱", "STOP", "ST", LONG[: LONGEST_HEADER - 9]],
        *[call(), THINK, SAY, TELL, CALL, NEXT, "goto=5", "<|channel|>commentary to=functions.now"],
    ]
)
soups = st.lists(fragments, max_size=12).map("".join)


@given(
    text=soups,
    cuts=st.lists(st.integers(0, 600), max_size=8),
    died_at=st.integers(0, 600),
    thinking=st.sampled_from(Thinking),
    tools=st.sampled_from([TOOLS, TOOLS[:1], []]),
    most_calls=st.sampled_from([None, 1]),
    stops=st.sampled_from([(), ("STOP",), ("\n", "text{"), ("{",), ("<|end|>", "a")]),
    cut=st.booleans(),
    markers_are_tokens=st.booleans(),
)
@settings(max_examples=150)
def test_what_is_told_depends_on_the_text_alone(
    text, cuts, died_at, thinking, tools, most_calls, stops, cut, markers_are_tokens
):
    """Nothing raises, no marker is shown, and no call has a name that nobody has."""
    told = transcripts.check(
        text,
        cuts=cuts,
        died_at=died_at,
        cut=cut,
        thinking=thinking,
        tools=tools,
        most_calls=most_calls,
        stops=stops,
        markers_are_tokens=markers_are_tokens,
    )
    names = {name for name, _, _ in told.calls}
    assert names <= {tool.name for tool in tools}
    assert len(told.calls) <= (most_calls or len(told.calls))
    shown = [told.content, told.reasoning, *(text for _, text, _ in told.calls)]
    assert not any(marker in text for text in shown for marker in MARKERS)


@given(letters=st.text(max_size=12))
@settings(max_examples=50)
def test_a_begun_message_is_shown_as_it_is(letters):
    """A prompt that ends in a message is continued in it."""
    letters = letters.replace("<", "")
    assert transcripts.read(letters, thinking=Thinking.NO).content == letters
    assert transcripts.read(letters, thinking=Thinking.OPEN).reasoning == letters.strip()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<|chan", Told()),
        ("<|channel|>fin", Told()),
        (" to=functions.no", Told()),
        ("<|channel|>commentary to=functions.now", Told()),
        ("comm", Told()),
        (f"{THINK}a<|en", Told("", "a")),
        (f"{THINK}a{NEXT}", Told("", "a")),
        (f"{THINK}a<|end|><|start|>assis", Told("", "a")),
        (f"{SAY}a <|ret", Told("a")),
        (f"{SAY}a ", Told("a ")),
        ("Hello", Told("Hello")),
        ("Hello <|ret", Told("Hello")),
        (f"{TELL}a{NEXT}<|channel|>fi", Told("a")),
        (CALL, Told(calls=(("now", "", False),))),
        (f"{CALL}\n", Told(calls=(("now", "", False),))),
        (f'{CALL}{{"a": "b', Told(calls=(("now", '{"a": "b', False),))),
        (f"{CALL}{{}}", Told(calls=NOW)),
        (f"{CALL}{{}}<|ca", Told(calls=NOW)),
    ],
)
def test_max_tokens_cuts_a_header_away(text, told):
    """Nothing is shown of half a header or marker, and no call is completed."""
    for cuts in ([], range(100)):
        assert told == transcripts.check(text, cuts=cuts, cut=True)


def test_one_call_ends_an_answer_that_may_have_only_one():
    """At its last bracket."""
    answer = transcripts.answer(most_calls=1)
    shown = answer.feed(transcripts.token_ids(f"{THINK}a{NEXT}{call()}<|start|>assistant{call()}"))
    assert answer.ended
    assert [piece.name for piece in shown.calls if piece.name] == ["now"]
    assert shown.token_count == len(transcripts.token_ids(f"{THINK}a{NEXT}{CALL}{{}}"))


@pytest.mark.parametrize(
    ("text", "stops", "content"),
    [
        (f"{THINK}STOP{NEXT}{SAY}a STOP b<|return|>", ["STOP"], "a "),
        (f"{CALL}STOP<|call|><|start|>assistant{SAY}b<|return|>", ["STOP"], "b"),
        (f"{TELL}aST{NEXT}{SAY}OPb<|return|>", ["STOP"], "aST\n\nOPb"),
        ("No header. STOP<|return|>", ["STOP"], "No header. "),
        (f"{SAY}a<|return|>", ["analysis", "final", "<|return|>"], "a"),
    ],
)
def test_stop_texts_are_looked_for_in_content_alone(text, stops, content):
    """Neither thoughts nor calls nor headers end an answer, nor does what is in two messages."""
    assert transcripts.check(text, cuts=[7, 30], stops=stops).content == content


def test_texts_and_arguments_come_as_they_are_written():
    """Nothing waits for the end of its message, and a name comes once and whole."""
    answer = transcripts.answer()
    answer.feed(transcripts.token_ids(THINK))
    assert answer.feed(transcripts.token_ids("a")).reasoning == "a"
    answer.feed(transcripts.token_ids(f"{NEXT}{TELL}"))
    assert answer.feed(transcripts.token_ids("b")).content == "b"
    (piece,) = answer.feed(transcripts.token_ids(NEXT + CALL)).calls
    assert (piece.name, piece.arguments) == ("now", "")
    assert answer.feed(transcripts.token_ids('{"city": "')).calls
    for letter in "Oslo":
        (piece,) = answer.feed(transcripts.token_ids(letter)).calls
        assert (piece.name, piece.arguments) == ("", letter)


def test_an_answer_without_a_header_comes_late_and_then_as_it_is_written():
    """It is held for no longer than a header can be."""
    answer = transcripts.answer()
    held = answer.feed(transcripts.token_ids("a" * LONGEST_HEADER))
    assert held.content == ""
    assert answer.feed(transcripts.token_ids("bc")).content == "a" * LONGEST_HEADER + "bc"
    assert answer.feed(transcripts.token_ids("d")).content == "d"


def test_tokens_of_thoughts_are_counted():
    """With the header before them and the marker behind them, and without those of an answer."""
    answer = transcripts.answer()
    answer.feed(transcripts.token_ids(f"{THINK}abc<|end|>"))
    thought = len(transcripts.token_ids(f"{THINK}abc<|end|>"))
    assert answer.reasoning_tokens == thought
    answer.feed(transcripts.token_ids(f"<|start|>assistant{SAY}abc<|return|>"))
    assert answer.reasoning_tokens == thought


def test_without_tools_a_call_is_no_call():
    """Its arguments are nobody's answer, and its markers are not shown."""
    assert transcripts.check(f"{call()}", tools=[]) == Told("", "{}")


def test_plain_content_costs_the_same_for_every_token():
    """Nothing is held back of a text without markers, and nothing is looked at twice."""
    answer = transcripts.answer()
    answer.feed(transcripts.token_ids(SAY))
    for number in range(1000):
        text = f"word {number};"
        assert answer.feed(transcripts.token_ids(text)).content == text
