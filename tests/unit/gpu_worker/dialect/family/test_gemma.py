"""Gemma 4: recognized, prompted, and its answers taken apart."""

import functools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transcripts import Told, Transcripts

from gpu_worker.dialect import families
from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.family import gemma
from gpu_worker.dialect.thinking import Thinking
from gpu_worker.dialect.tools import Tool

TEMPLATES = Path(__file__).parents[4] / "templates"
LARGE = (TEMPLATES / "gemma-4-31b-it.jinja").read_text(encoding="utf-8")
CLOSED = "<|channel>thought\n<channel|>"
# The small models' template is the same but for three lines, by which the large ones close a
# thought that nobody asked for.
PRIMER = """\
        {%- if not enable_thinking -%}
            {{- '<|channel>thought\\n<channel|>' -}}
        {%- endif -%}
"""
SMALL = LARGE.replace(PRIMER, "")
FIRST = (TEMPLATES / "gemma-4-e2b-it-first.jinja").read_text(encoding="utf-8")

Q = '<|"|>'
WEATHER = Tool(
    "get_weather",
    "Weather of a city",
    {
        "type": "object",
        "properties": {
            "days": {"type": "integer"},
            "city": {"type": "string", "description": "Its name"},
        },
        "required": ["city"],
    },
)
NOW = Tool("now")
ANY = Tool("any", parameters={"type": "object"})
TOOLS = [WEATHER, NOW, ANY]


@functools.cache
def template(source):
    """Return a template as the worker loads it."""
    return ChatTemplate(source, variables={"bos_token": "<bos>"})


@functools.cache
def profile(source):
    """Return what is found of a template."""
    return families.find(template(source))


GEMMA = profile(LARGE)
transcripts = Transcripts(GEMMA, TOOLS)


def prompt(source, messages, effort=None, tools=()):
    """Return a prompt and where its answer begins."""
    shaped, variables = profile(source).template_input(messages, tools, effort)
    text = template(source).render(shaped, **variables)
    return text, profile(source).thinking_after(text)


def user(text="Hi"):
    """Say something."""
    return {"role": "user", "content": text}


def assistant(content="", calls=(), **fields):
    """Answer; calls as id, name and arguments."""
    said = {"role": "assistant", "content": content, **fields}
    if calls:
        said["tool_calls"] = [
            {"id": at, "type": "function", "function": {"name": name, "arguments": arguments}}
            for at, name, arguments in calls
        ]
    return said


def result(content, call_id=""):
    """Return what a tool said."""
    said = {"role": "tool", "content": content}
    return {**said, "tool_call_id": call_id} if call_id else said


# Recognition


@pytest.mark.parametrize("source", [LARGE, SMALL, FIRST])
def test_the_family_is_recognized(source):
    """Its templates are nobody else's, in any revision and size."""
    found = profile(source)
    assert found.family == "gemma"
    assert found.features == ["tools", "structured_output", "logprobs", "reasoning"]
    assert found.stop_tokens == ("<turn|>", "<|tool_response>")
    assert found.markers == {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", Q}


def test_other_templates_are_not_gemmas():
    """Neither those of other families nor one without tools."""
    others = [path for path in TEMPLATES.glob("*.jinja") if not path.name.startswith("gemma-4")]
    assert others
    for path in others:
        assert not gemma.matches(ChatTemplate(path.read_text(encoding="utf-8"))), path.name
    assert not gemma.matches(ChatTemplate("<|tool_call>call:{{ messages }}"))


# Prompts


def test_system_messages_and_tools_are_told():
    """The first system message shares a turn with the tools, a later one has one of its own."""
    messages = [
        {"role": "system", "content": "Be brief."},
        user(),
        assistant("Hello."),
        {"role": "system", "content": "Be kind."},
        user("Bye"),
    ]
    text, thinking = prompt(LARGE, messages, tools=[WEATHER, NOW])
    assert text == (
        "<bos><|turn>system\nBe brief."
        f"<|tool>declaration:get_weather{{description:{Q}Weather of a city{Q},parameters:"
        f"{{properties:{{city:{{description:{Q}Its name{Q},type:{Q}STRING{Q}}},"
        f"days:{{type:{Q}INTEGER{Q}}}}},required:[{Q}city{Q}],type:{Q}OBJECT{Q}}}}}<tool|>"
        f"<|tool>declaration:now{{description:{Q}{Q},parameters:{{type:{Q}OBJECT{Q}}}}}<tool|>"
        "<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\nHello.<turn|>\n"
        "<|turn>system\nBe kind.<turn|>\n<|turn>user\nBye<turn|>\n<|turn>model\n" + CLOSED
    )
    assert thinking is Thinking.NO


@pytest.mark.parametrize("source", [LARGE, SMALL, FIRST])
def test_thinking_is_switched_by_a_token_in_the_system_turn(source):
    """With an effort the model opens a thought itself; without, only large ones have it closed."""
    text, thinking = prompt(source, [user()], "low")
    assert text.startswith("<bos><|turn>system\n<|think|>")
    assert text.endswith("<|turn>user\nHi<turn|>\n<|turn>model\n")
    assert thinking is Thinking.MAYBE
    text, thinking = prompt(source, [user()])
    assert text == "<bos><|turn>user\nHi<turn|>\n<|turn>model\n" + CLOSED * (source is LARGE)
    assert thinking is (Thinking.NO if source is LARGE else Thinking.MAYBE)


CALLED = [
    user("Weather?"),
    assistant(
        "Let me look.",
        [
            ("c1", "get_weather", {"days": 2, "city": 'Oslo "N"', "b": None, "A": [1.5, {"x": True}]}),
            ("c2", "now", {}),
        ],
        reasoning="Need both.",
        reasoning_content="Need both.",
    ),
    result('{"sun": true}', "c1"),
    result("12:00", "c2"),
]  # fmt: skip
CALLS = (
    "<|channel>thought\nNeed both.\n<channel|>Let me look."
    f'<|tool_call>call:get_weather{{A:[1.5,{{x:true}}],b:null,city:{Q}Oslo "N"{Q},days:2}}<tool_call|>'
    "<|tool_call>call:now{}<tool_call|>"
)
RESULTS = (
    f'<|tool_response>response:get_weather{{value:{Q}{{"sun": true}}{Q}}}<tool_response|>'
    f"<|tool_response>response:now{{value:{Q}12:00{Q}}}<tool_response|>"
)


def test_results_follow_their_calls_in_the_same_turn():
    """What was said stands before the calls, and the turn goes on after the results."""
    begun = "<bos><|turn>user\nWeather?<turn|>\n<|turn>model\n"
    text, thinking = prompt(LARGE, CALLED)
    assert text == begun + CALLS + RESULTS
    assert thinking is Thinking.MAYBE
    text, _ = prompt(LARGE, [*CALLED, assistant("Sunny."), user("Thanks")])
    assert text == (
        begun + CALLS.partition("<channel|>")[2] + RESULTS + "Sunny.<turn|>\n"
        "<|turn>user\nThanks<turn|>\n<|turn>model\n" + CLOSED
    )


def test_after_a_result_the_prompt_opens_the_thought():
    """vllm#49717, vllm#45834: with thinking on, the answer begins within it."""
    text, thinking = prompt(LARGE, CALLED, "high")
    assert text.endswith(RESULTS + "<|channel>thought\n")
    assert thinking is Thinking.OPEN


def test_the_first_template_is_told_of_results_as_well():
    """It knows no messages of tools, and goes on with no turn: what was said stays last."""
    text, thinking = prompt(FIRST, CALLED)
    calls = CALLS.partition("Let me look.")[2].replace("null", "None")
    assert text == (
        "<bos><|turn>user\nWeather?<turn|>\n<|turn>model\n"
        + calls
        + RESULTS
        + "Let me look.<turn|>\n"
    )
    assert thinking is Thinking.MAYBE
    silent = {**CALLED[1], "content": ""}
    text, _ = prompt(FIRST, [CALLED[0], silent, *CALLED[2:], assistant("Sunny."), user()])
    assert calls + RESULTS + "Sunny.<turn|>\n<|turn>user\n" in text


def test_arguments_that_are_no_object_are_told_as_text():
    """max_tokens may have cut them; the template takes objects alone."""
    messages = [user(), assistant(calls=[("c1", "now", '{"a')]), result("?", "c1")]
    text, _ = prompt(LARGE, messages)
    assert f'call:now{{arguments:{Q}{{"a{Q}}}<tool_call|>' in text


# Round trip


def written(value):
    """Write a value as the template does."""
    if isinstance(value, str):
        return Q + value + Q
    if isinstance(value, dict):
        return "{" + fields(value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


def fields(value):
    """Write what stands in an object."""
    return ",".join(f"{key}:{written(inner)}" for key, inner in value.items())


def call(name="now", arguments=None):
    """Write a call as a model does."""
    return f"<|tool_call>call:{name}{{{fields(arguments or {})}}}<tool_call|>"


texts = st.text(alphabet="ab {}[]\"'\\,:<|>=é🐱\n", max_size=8).filter(
    lambda text: not any(marker in text for marker in GEMMA.markers)
)
keys = st.text(alphabet="abAB_-.1é", min_size=1, max_size=4)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
arguments = st.dictionaries(keys, values, max_size=3)
weathers = st.fixed_dictionaries({"city": texts}, optional={"days": st.integers()})
calls = st.lists(
    st.tuples(st.just("any"), arguments) | st.tuples(st.just("get_weather"), weathers), max_size=3
)
words = st.text(alphabet='ab {}"\\é🐱\n', max_size=8)


@given(made=calls, content=words, thought=words)
@settings(max_examples=40)
def test_a_history_is_read_as_what_it_was(made, content, thought):
    """The assistant's turn that the template writes has the same calls, content and thought."""
    given_calls = [(f"c{at}", name, dict(said)) for at, (name, said) in enumerate(made)]
    messages = [user(), assistant(content, given_calls, reasoning=thought), result("ok", "c0")]
    text, _ = prompt(LARGE, messages if made else messages[:2])
    turn = text.partition("<|turn>model\n")[2].partition("<|tool_response>")[0]
    turn = turn.partition("<turn|>")[0]
    said, thoughts, read = transcripts.read(turn).values()
    assert said == content.strip()
    assert thoughts == thought.strip()
    assert read == [(name, said) for _, name, said in given_calls]


# Answers


@given(
    thought=st.none() | words,
    content=words,
    made=calls,
    gap=st.sampled_from(["", "\n", " \n"]),
    open_=st.booleans(),
    after=st.booleans(),
    cuts=st.lists(st.integers(0, 400), max_size=4),
    died_at=st.integers(0, 400),
    tokens=st.booleans(),
)
@settings(max_examples=60)
def test_a_transcript_is_taken_apart(
    thought, content, made, gap, open_, after, cuts, died_at, tokens
):
    """Thought, content and calls as the model writes them come out as they were put in."""
    text, thinking = "", Thinking.MAYBE
    if thought is not None:
        text = f"{thought}{gap}<channel|>"
        thinking = Thinking.OPEN if open_ else Thinking.NO
        text = text if open_ else "<|channel>thought\n" + text
    text += content + gap + "".join(call(name, said) for name, said in made)
    text += CLOSED * after
    told = transcripts.check(
        text, cuts=cuts, died_at=died_at, markers_are_tokens=tokens, thinking=thinking
    )
    said, thoughts, read = told.values()
    expected = content + gap if thought is None else (content + gap).lstrip()
    assert said == (expected.rstrip() if made or after else expected)
    assert thoughts == (thought or "").strip()
    assert read == made
    assert all(complete for _, _, complete in told.calls)


fragments = st.sampled_from(
    [
        *["<|channel>", "<channel|>", "thought", "thought\n", "<|tool_call>", "<tool_call|>", Q],
        *["<", "<|", "<|to", "<tool_", '<|"', "call", "call:", "call:now", "call:any{", "call:x"],
        *["{", "}", "[", "]", "(", ")", ",", ":", "=", '"', "'", "\\", "\\u00", "a:", "city:", "days:"],
        *["1", "tru", "null", "text", "é🐱", "\n", " ", "STOP", "ST", call(), CLOSED, Q * 2],
        *[call("get_weather", {"city": "Oslo"}), "call:any(a='b')", f"call:get_weather{{city:{Q}x"],
    ]
)  # fmt: skip
soups = st.lists(fragments, max_size=16).map("".join)


@given(
    text=soups,
    cuts=st.lists(st.integers(0, 200), max_size=4),
    died_at=st.integers(0, 200),
    thinking=st.sampled_from(Thinking),
    tools=st.sampled_from([None, []]),
    most_calls=st.sampled_from([None, 1]),
    stops=st.sampled_from([(), ("STOP",), ("\n", "text{"), ("call:",), ("}", "1")]),
    cut=st.booleans(),
    tokens=st.booleans(),
)
@settings(max_examples=150)
def test_what_comes_out_depends_on_the_text_alone(
    text, cuts, died_at, thinking, tools, most_calls, stops, cut, tokens
):
    """Whatever a model writes, and however it comes: no marker is shown, calls are valid JSON."""
    told = transcripts.check(
        text,
        cuts=cuts,
        died_at=died_at,
        cut=cut,
        markers_are_tokens=tokens,
        thinking=thinking,
        tools=tools,
        most_calls=most_calls,
        stops=stops,
    )
    assert not any(marker in told.content + told.reasoning for marker in GEMMA.markers)
    assert len(told.calls) <= (len(told.calls) if most_calls is None else most_calls)
    assert not (told.calls and tools == [])
    for _, said, complete in told.calls:
        if complete:
            assert isinstance(json.loads(said), dict)
        assert complete or cut


OSLO = call("get_weather", {"city": "Oslo"})
OSLO_CALL = ("get_weather", '{"city": "Oslo"}', True)
NOW_CALL = ("now", "{}", True)


@pytest.mark.parametrize(
    ("text", "thinking", "expected"),
    [
        (OSLO + call(), Thinking.NO, Told(calls=(OSLO_CALL, NOW_CALL))),
        ("Look:\n" + OSLO, Thinking.NO, Told("Look:", calls=(OSLO_CALL,))),
        # vllm#45834: the prompt opened the thought.
        ("a<channel|>" + OSLO, Thinking.OPEN, Told("", "a", (OSLO_CALL,))),
        # vllm#49717: what a thought that never ends holds is a thought.
        ("a", Thinking.OPEN, Told("", "a")),
        # vllm PR#48262 (#48217): thinking is on, and the model does not.
        ("a", Thinking.MAYBE, Told("a")),
        # mlx-vlm PR#1161: an empty block, also with thinking off, all in one piece with the answer.
        (CLOSED + "a", Thinking.NO, Told("a")),
        (CLOSED + CLOSED + "a", Thinking.MAYBE, Told("a")),
        # OpenTranscribe#439: an end without a beginning is not shown.
        ("a<channel|>b", Thinking.NO, Told("ab")),
        ("<channel|>b", Thinking.MAYBE, Told("b")),
        # A thought in the middle, and one that a call ends.
        ("a\n<|channel>thought\nb<channel|>c", Thinking.NO, Told("a\n\nc", "b")),
        ("<|channel>thought\na" + OSLO + "<channel|>b", Thinking.MAYBE, Told("b", "a", (OSLO_CALL,))),
        ("<|channel>thought\na<|channel>thought\nb<channel|>c", Thinking.NO, Told("c", "a\n\nb")),
        # llama.cpp#22371: only what goes on as a call is one; the rest is content.
        ("use <|tool_call> to call", Thinking.NO, Told("use  to call")),
        (call("nope", {"a": "b"}) + "c", Thinking.NO, Told("call:nope{a:b}c")),
        # vllm PR#45553: markers without a meaning.
        (f"a<tool_call|>b{Q}c", Thinking.NO, Told("abc")),
        # A call whose marker is missing, and text that looks like one.
        ("<channel|>call:now{}", Thinking.OPEN, Told(calls=(NOW_CALL,))),
        ("call:now{}call:now{}<tool_call|>", Thinking.NO, Told(calls=(NOW_CALL, NOW_CALL))),
        ("call: me", Thinking.NO, Told("call: me")),
        ("I call:now{}", Thinking.NO, Told("I call:now{}")),
        # vllm#38946: no piece of a delimiter is told.
        (f"<|tool_call>call:get_weather{{city:{Q}<|{Q}}}", Thinking.NO,
         Told(calls=(("get_weather", '{"city": "<|"}', True),))),
    ],
)  # fmt: skip
def test_known_cases(text, thinking, expected):
    """Each rule, and what other servers got wrong, on a text of its own."""
    for tokens in (True, False):
        assert expected == transcripts.check(text, thinking=thinking, markers_are_tokens=tokens)


def test_without_tools_no_call_is_made():
    """tool_choice none: what the model writes all the same is content, without its markers."""
    told = transcripts.check(OSLO + "a", tools=[], thinking=Thinking.NO)
    assert told == Told("call:get_weather{city:Oslo}a")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # vllm PR#42635: within a thought.
        ("<|channel>thought\nab", Told("", "ab")),
        ("<|channel>thou", Told()),
        ("<|channel>thought\na<chan", Told("", "a")),
        ("a<|tool", Told("a")),
        ("a<|tool_call>call:get", Told("a")),
        (f"a<|tool_call>call:get_weather{{city:{Q}Os<|",
         Told("a", calls=(("get_weather", '{"city": "Os', False),))),
        ("<|tool_call>call:get_weather{days:1", Told(calls=(("get_weather", '{"days": ', False),))),
    ],
)  # fmt: skip
def test_max_tokens_cuts_markup_away(text, expected):
    """Half a call is no content; what has been told of it stays."""
    assert expected == transcripts.check(text, cut=True)


def test_one_call_ends_an_answer_that_may_have_only_one():
    """The answer ends with its first call."""
    told = transcripts.check(OSLO + call() + "a", most_calls=1)
    assert told == Told(calls=(OSLO_CALL,))


def test_a_long_text_is_told_as_it_comes():
    """Every token of an argument brings its part, with a token for each marker."""
    text = f"<|tool_call>call:get_weather{{city:{Q}{'x' * 50}"
    answer, told = transcripts.answer(), Told()
    for at, token_id in enumerate(transcripts.token_ids(text)):
        told = told.add(answer.feed([token_id]))
        if at > 24:  # <|tool_call> call:get_weather{ city: <|"|>
            assert told.calls[0][1] == '{"city": "' + "x" * (at - 23)
