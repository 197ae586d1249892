"""Models that write Hermes' calls: Qwen 3 of 2504 and 2507, recognized, prompted and read."""

import json
from pathlib import Path

import jsonschema
import pytest
from grammar_texts import GrammarTexts
from hypothesis import given, settings
from hypothesis import strategies as st
from transcripts import Told, Transcripts

from gpu_worker.dialect import families
from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.family.hermes import Hermes
from gpu_worker.dialect.thinking import Thinking
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.grammar import Json

TEMPLATES = Path(__file__).parents[4] / "templates"
QWEN3 = (TEMPLATES / "qwen-3.jinja").read_text()
BEGIN = "<|im_start|>assistant\n"
# Qwen3-Thinking-2507 has the same template up to here, and one ending for all prompts.
THINKING = f"{QWEN3.partition('{%- if add_generation_prompt %}')[0]}{{{{- '{BEGIN}<think>\n' }}}}"
templates = {
    "qwen-3": ChatTemplate(QWEN3),
    "thinking-2507": ChatTemplate(THINKING),
    "instruct-2507": ChatTemplate((TEMPLATES / "qwen-3-instruct-2507.jinja").read_text()),
}
profiles = {name: families.find(template) for name, template in templates.items()}
NAMES = [*templates]

WEATHER = Tool(
    "get_weather",
    "Weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
NOW = Tool("now")
TOOLS = [WEATHER, NOW]
ARGUMENTS = {"city": 'Oslo "é🐱"\n', "days": 2}
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Weather?"}
answers = Transcripts(profiles["qwen-3"], TOOLS)


def prompt(name, messages, tools=(), effort=None, **variables):
    """Render a prompt as a request with these messages gets it."""
    messages, given = profiles[name].template_input(messages, tools, effort)
    return templates[name].render(messages, **given, **variables)


def called(*calls, content="", **rest):
    """Return a message with calls, given as name and arguments, and a result for each."""
    made = [
        {"id": str(at), "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(calls)
    ]
    results = [{"role": "tool", "content": f"done {call['id']}"} for call in made]
    return [{"role": "assistant", "content": content, "tool_calls": made, **rest}, *results]


def call(name="now", arguments="{}"):
    """Write a call as the templates do."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("name", "reasoning"),
    [("qwen-3", ["reasoning"]), ("thinking-2507", ["reasoning: always"]), ("instruct-2507", [])],
)
def test_their_templates_are_recognized(name, reasoning):
    """By the calls that they write; one of them has no switch for its thoughts, one no thoughts."""
    profile = profiles[name]
    assert profile.family == "hermes"
    assert profile.features == ["tools", "structured_output", "logprobs", *reasoning]
    assert profile.markers >= {"<tool_call>", "</tool_call>"}


@pytest.mark.parametrize(
    ("source", "family"),
    [
        ("{{ tools }}<tool_call>{name}\n<arg_key>{key}</arg_key></tool_call>", "plain"),
        ("<tool_call>\n{'name': 'f'}", "plain"),
        ("{{ tools }}<tool_call>\n{'name': 'f'}", "smollm"),
        ("{{ tools }}{{ raise_exception('<tool_call>') }}", "hermes"),
    ],
)
def test_other_calls_stand_between_the_same_tags(source, family):
    """What is taken for Hermes' has JSON in its tags, unless that cannot be found out."""
    assert families.find(ChatTemplate("{% raw %}{% endraw %}" + source)).family == family


@pytest.mark.parametrize(
    ("name", "effort", "end", "thinking"),
    [
        ("qwen-3", None, "<think>\n\n</think>\n\n", Thinking.NO),
        ("qwen-3", "low", "", Thinking.MAYBE),
        ("thinking-2507", None, "<think>\n", Thinking.OPEN),
        ("thinking-2507", "high", "<think>\n", Thinking.OPEN),
        ("instruct-2507", None, "", Thinking.NO),
        ("instruct-2507", "high", "", Thinking.NO),
    ],
)
def test_the_prompt_tells_where_the_answer_begins(name, effort, end, thinking):
    """The template has the last word."""
    text = prompt(name, [USER], effort=effort)
    assert text.endswith(BEGIN + end)
    assert profiles[name].thinking_after(text) is thinking


@pytest.mark.parametrize("name", NAMES)
def test_prompts(name):
    """Later system messages stay where they are; arguments are JSON, results are a user's turn."""
    later = {"role": "system", "content": "Now in French."}
    calls = [("get_weather", ARGUMENTS), ("now", {})]
    text = prompt(name, [SYSTEM, USER, *called(*calls, content="Sure."), later, USER], TOOLS)
    lines = "\n".join(json.dumps(tool.as_template_value()) for tool in TOOLS)
    assert "<|im_start|>system\nBe brief.\n\n# Tools" in text
    assert f"<tools>\n{lines}\n</tools>" in text
    assert (
        "Sure.\n<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "Oslo \\"é🐱\\"\\n", "days": 2}}'
        f"\n</tool_call>\n{call()}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\ndone 0\n</tool_response>\n"
        "<tool_response>\ndone 1\n</tool_response><|im_end|>\n"
        "<|im_start|>system\nNow in French.<|im_end|>\n"
    ) in text


@pytest.mark.parametrize("name", ["qwen-3", "thinking-2507"])
def test_thoughts_since_the_last_question_are_kept(name):
    """Earlier ones are not."""
    first = {"role": "assistant", "content": "Yes.", "reasoning_content": "an old thought"}
    last = called(("now", {}), reasoning_content="a new thought")
    text = prompt(name, [USER, first, USER, *last], TOOLS, effort="low")
    assert "an old thought" not in text
    assert f"{BEGIN}<think>\na new thought\n</think>\n\n<tool_call>" in text


@pytest.mark.parametrize("name", NAMES)
def test_broken_arguments_are_written_as_they_are(name):
    """They are text in the history of any client."""
    assert '"arguments": {"city": "Os}\n' in prompt(
        name, [USER, *called(("get_weather", '{"city": "Os'))], TOOLS
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", ["", "Let me see.\nOne moment."])
@pytest.mark.parametrize("reasoning", ["", "They want it\n\nnow."])
@pytest.mark.parametrize("calls", [[], [("now", {})], [("get_weather", ARGUMENTS), ("now", {})]])
def test_what_a_template_writes_is_read_again(name, content, reasoning, calls):
    """The assistant's turn, cut out of a rendered history, has the same thoughts and calls."""
    answer, *results = called(*calls, content=content)
    if reasoning:
        answer["reasoning_content"] = reasoning
    text = prompt(name, [USER, answer, *results], TOOLS, "low", add_generation_prompt=False)
    turn = text.split(BEGIN)[1].split("<|im_end|>")[0]
    thinks = name != "instruct-2507"
    told = Transcripts(profiles[name], TOOLS).check(
        turn,
        cuts=range(0, 400, 7),
        died_at=60,
        thinking=Thinking.MAYBE if thinks else Thinking.NO,
    )
    assert told.values() == (content, reasoning if thinks else "", calls)


# Answers


@pytest.mark.parametrize(
    ("text", "thinking", "expected"),
    [
        pytest.param(call(), Thinking.NO, ("", "", [("now", {})]), id="vllm#28806, #21301"),
        pytest.param(
            '<tool_call>\n{"name": "now"}\n</tool_call>',
            Thinking.NO,
            ("", "", [("now", {})]),
            id="vllm#28806 without arguments",
        ),
        pytest.param(
            call("get_weather", '{"city": "ZSJB39"}'),
            Thinking.NO,
            ("", "", [("get_weather", {"city": "ZSJB39"})]),
            id="vllm#10395",
        ),
        pytest.param("It rains.", Thinking.NO, ("It rains.", "", []), id="vllm#17349"),
        pytest.param(
            "a <think> tag\n</think>\n\nIt rains.",
            Thinking.OPEN,
            ("It rains.", "a <think> tag", []),
            id="vllm#22507",
        ),
        pytest.param(
            f"\n\n{call()}\n", Thinking.NO, ("\n\n", "", [("now", {})]), id="Rapid-MLX#448"
        ),
        pytest.param(
            '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
            Thinking.NO,
            ("", "", [("now", {})]),
            id="SmolLM3, on one line",
        ),
        pytest.param(
            '<tool_call>[\n{"name": "now", "arguments": {}},\n'
            '{"name": "get_weather", "arguments": {"city": "Oslo"}}\n]</tool_call>',
            Thinking.NO,
            ("", "", [("now", {}), ("get_weather", {"city": "Oslo"})]),
            id="SmolLM2, a list",
        ),
        pytest.param("<tool_call>[]</tool_call>", Thinking.NO, ("", "", []), id="SmolLM2, none"),
        pytest.param(
            "<think>\n\n</think>\n\nIt rains.", Thinking.MAYBE, ("It rains.", "", []), id="no_think"
        ),
        pytest.param(
            f"<think>\nlook\n</think>\n\nSure.\n{call()}\n{call()}",
            Thinking.MAYBE,
            ("Sure.", "look", [("now", {}), ("now", {})]),
            id="all of it",
        ),
    ],
)
def test_answers(text, thinking, expected):
    """What other servers got wrong, and what models of this kind are known to write."""
    told = answers.check(text, cuts=range(0, 300, 5), died_at=17, thinking=thinking)
    content, *rest = told.values()
    assert (content.lstrip("\n"), *rest) == (expected[0].lstrip("\n"), *expected[1:])


def test_a_schema_holds_also_where_thinking_is_off():
    """The closed thought is in the prompt, so the answer begins with JSON (vllm#27447)."""
    grammar = profiles["qwen-3"].grammar(
        thinking=Thinking.NO, thinks=False, schema="{}", tools=[], forced=False, several=True
    )
    assert grammar == Json("{}")


def test_arguments_are_streamed_as_they_come():
    """All that is JSON of theirs is passed on at once."""
    answer, told = answers.answer(thinking=Thinking.NO), Told()
    head = '<tool_call>\n{"name": "get_weather", "arguments": '
    told = told.add(answer.feed(answers.token_ids(head)))
    arguments = '{"city": "a long \\"text\\" 🐱"'
    for at, character in enumerate(arguments, start=1):
        told = told.add(answer.feed(answers.token_ids(character)))
        assert told.calls == (("get_weather", arguments[:at], False),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Look:\n<tool_c", Told("Look:")),
        ('Look:\n<tool_call>\n{"name": "no', Told("Look:")),
        ('<tool_call>\n{"name": "now"', Told()),
        ('<tool_call>\n{"name": "now", "arguments": {"a', Told("", "", (("now", '{"a', False),))),
        (
            '<tool_call>\n{"name": "now", "arguments": {}}\n</to',
            Told("", "", (("now", "{}", True),)),
        ),
    ],
)
def test_max_tokens_cuts_a_call_anywhere(text, expected):
    """No half of a call is content, and of its arguments what came stays."""
    read = answers.check(text, cuts=[3, 20], died_at=9, cut=True, thinking=Thinking.NO)
    assert read == expected


words = st.text(alphabet='ab {}"\\é🐱\n', max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\{}[]<>/é🐱\n', max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
arguments = st.dictionaries(st.text(alphabet='a"é', max_size=3), values, max_size=3)
calls = st.lists(st.tuples(st.sampled_from(["get_weather", "now"]), arguments), max_size=3)
cuts = st.lists(st.integers(0, 1000), max_size=8)


@settings(max_examples=60)
@given(
    thought=st.none() | words,
    content=words,
    calls=calls,
    opened=st.booleans(),
    dump=st.sampled_from([{}, {"indent": 2, "ensure_ascii": False}]),
    cuts=cuts,
    died_at=st.integers(0, 1000),
    cut=st.booleans(),
    markers_are_tokens=st.booleans(),
)
def test_a_transcript_is_taken_apart(
    thought, content, calls, opened, dump, cuts, died_at, cut, markers_are_tokens
):
    """Thought, content and calls as models write them come out as they were put in."""
    text = "" if thought is None else f"\n{thought}\n</think>\n\n"
    text = text if opened or thought is None else "<think>" + text
    text += content + "\n" + "\n".join(call(name, json.dumps(each, **dump)) for name, each in calls)
    told = answers.check(
        text,
        cuts=cuts,
        died_at=died_at,
        cut=cut,
        markers_are_tokens=markers_are_tokens,
        thinking=Thinking.OPEN if opened and thought is not None else Thinking.MAYBE,
    )
    said = content + "\n"
    said = said if thought is None else said.lstrip()
    said = said.rstrip() if calls else said
    assert told.values() == (said, (thought or "").strip(), calls)


fragments = st.sampled_from(
    [
        *["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_call>\n", "<", "<th", "</t"],
        *['{"name": "now", ', '"arguments": {"a": "}"}}', '{"name": "nope"', '"arguments":', "{}"],
        *["[", "]", ",", '"', "\\", ": ", "\n", " ", "text", "é🐱", "}", "{", "null", "STOP", "ST"],
        *[call(), call("get_weather", '{\n "city": "Oslo"\n}'), '\n</tool_call>"', "</tool_call"],
    ]
)


@settings(max_examples=100)
@given(
    text=st.lists(fragments, max_size=14).map("".join),
    cuts=cuts,
    died_at=st.integers(0, 200),
    cut=st.booleans(),
    markers_are_tokens=st.booleans(),
    thinking=st.sampled_from(Thinking),
    tools=st.sampled_from([None, []]),
    most_calls=st.sampled_from([None, 1]),
    stops=st.sampled_from([(), ("STOP",), ("\n", "text{"), ("<tool_call>",), ("</th", "a")]),
)
def test_what_comes_out_depends_on_the_text_alone(text, cuts, died_at, **options):
    """Whatever a model writes, however it is cut, and wherever another worker takes it up."""
    answers.check(text, cuts=cuts, died_at=died_at, **options)


# Grammar


several = GrammarTexts(Hermes().grammar(TOOLS, several=True))


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (call(), True),
        (call("get_weather", '{"city": "Oslo", "days": 2}'), True),
        (f"{call()}\n{call('get_weather', json.dumps(ARGUMENTS, ensure_ascii=False))}", True),
        (call("get_weather", '{"days": 2}'), False),
        (call("get_weather", '{"city": 2}'), False),
        (call("now", '{"a": 1}'), False),
        (call("nope"), False),
        (f"{call()}{call()}", False),
        (f"Sure.\n{call()}", False),
        ("", False),
    ],
)
def test_the_grammar_allows_calls_and_nothing_else(text, fits):
    """Arguments are the tool's, and calls stand on lines of their own."""
    assert several.allow(text) is fits


@pytest.mark.parametrize("seed", range(30))
def test_what_the_grammar_allows_is_read_as_valid_calls(seed):
    """Whatever is written under it, the arguments fit the tool's schema."""
    content, reasoning, calls = answers.read(several.random(seed), thinking=Thinking.NO).values()
    assert (content, reasoning) == ("", "")
    assert calls
    for name, arguments in calls:
        schema = {"get_weather": WEATHER, "now": NOW}[name].arguments_schema()
        jsonschema.validate(arguments, schema)


@pytest.mark.parametrize(
    ("thinking", "fit", "unfit"),
    [
        (Thinking.OPEN, f"a\n</think>\n\n{call()}", call()),
        (Thinking.MAYBE, f"<think>a</think>\n\n{call()}", f"a</think>\n\n{call()}"),
        (Thinking.MAYBE, call(), "a"),
        (Thinking.NO, call(), f"<think></think>\n\n{call()}"),
    ],
)
def test_a_thought_comes_before_what_is_held_to_a_form(thinking, fit, unfit):
    """Where the answer may begin with one."""
    grammar = profiles["qwen-3"].grammar(
        thinking=thinking,
        thinks=thinking is not Thinking.NO,
        schema=None,
        tools=[NOW],
        forced=True,
        several=False,
    )
    assert GrammarTexts(grammar).allow(fit)
    assert not GrammarTexts(grammar).allow(unfit)
