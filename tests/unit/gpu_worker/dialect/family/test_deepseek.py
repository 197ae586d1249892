"""DeepSeek V3, R1 and V3.1: recognized, prompted, read, written, and held to their calls."""

import json
from pathlib import Path

import pytest
from grammar_texts import GrammarTexts
from hypothesis import given, settings
from hypothesis import strategies as st
from transcripts import Told, Transcripts

from gpu_worker.dialect import families
from gpu_worker.dialect.chat_template import ChatTemplate, PromptEncoder
from gpu_worker.dialect.family.deepseek import DeepSeekCalls
from gpu_worker.dialect.family.deepseek_reader import MARKERS
from gpu_worker.dialect.thinking import Thinking
from gpu_worker.dialect.tools import Tool

TEMPLATES = Path(__file__).parents[4] / "templates"
BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
ASSISTANT = "<｜Assistant｜>"
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEP, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
NOW = Tool("now")
WEATHER = Tool(
    "get_weather",
    "Weather of a city",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
TOOLS = [NOW, WEATHER]
NAMES = [
    "deepseek-v3-0324",
    "deepseek-r1-distill-llama",
    "deepseek-r1",
    "deepseek-v3.1",
]
FENCED = NAMES[:3]


def load(name):
    """Return the template of a model."""
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, variables={"bos_token": BOS, "eos_token": EOS})


templates = {name: load(name) for name in NAMES}
profiles = {name: families.find(template) for name, template in templates.items()}
V3, R1, V31 = (profiles[name] for name in ("deepseek-v3-0324", "deepseek-r1", "deepseek-v3.1"))
readers = {name: Transcripts(profile, TOOLS) for name, profile in profiles.items()}
transcripts = readers["deepseek-v3.1"]


def call(name="now", arguments="{}"):
    """Write a call as V3.1 does."""
    return f"{CALL}{name}{SEP}{arguments}{CALL_END}"


def fenced(name="now", arguments="{}"):
    """Write a call as V3 and R1 do."""
    return f"{CALL}function{SEP}{name}\n```json\n{arguments}\n```{CALL_END}"


def calls(*written):
    """Return complete calls, as a client is told of them."""
    return tuple((name, arguments, True) for name, arguments in written)


def prompt(name, messages, tools=(), effort=None, **variables):
    """Render a prompt as a request with these messages gets it."""
    messages, found = profiles[name].template_input(messages, tools, effort)
    return templates[name].render(messages, **(found | variables))


def history_call(number, name, arguments):
    """Return a call as it stands in a history."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Weather?"}
CALLED = {
    "role": "assistant",
    "content": "Let me look.",
    "reasoning": "hm",
    "reasoning_content": "hm",
    "tool_calls": [
        history_call(1, "get_weather", {"city": 'Oslo "old"', "days": 2}),
        history_call(2, "now", {}),
    ],
}
RESULTS = [
    {"role": "tool", "content": "12 °C", "tool_call_id": "call_1"},
    {"role": "tool", "content": "noon", "tool_call_id": "call_2"},
]


# Recognition


@pytest.mark.parametrize(
    ("name", "reasoning"),
    [
        ("deepseek-v3-0324", []),
        ("deepseek-r1-distill-llama", ["reasoning: always"]),
        ("deepseek-r1", ["reasoning: always"]),
        ("deepseek-v3.1", ["reasoning"]),
    ],
)
def test_its_templates_are_recognized(name, reasoning):
    """By the marker between name and arguments; only V3.1's has a switch for thinking."""
    profile = profiles[name]
    assert profile.family == "deepseek"
    assert profile.features == ["tools", "structured_output", "logprobs", *reasoning]
    assert profile.markers >= set(MARKERS)
    assert "<｜tool▁outputs▁begin｜>" in profile.stop_tokens


# Prompts


FENCED_CALLS = (
    f"{BEGIN}{CALL}function{SEP}get_weather\n```json\n"
    f'{{"city": "Oslo \\"old\\"", "days": 2}}\n```{CALL_END}\n'
    f"{CALL}function{SEP}now\n```json\n{{}}\n```{CALL_END}{END}"
)
CALLS_OF_V31 = (
    f'{BEGIN}{CALL}get_weather{SEP}{{"city": "Oslo \\"old\\"", "days": 2}}{CALL_END}'
    f"{CALL}now{SEP}{{}}{CALL_END}{END}"
)
OUTPUTS = (
    "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>12 °C<｜tool▁output▁end｜>{between}"
    "<｜tool▁output▁begin｜>noon<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
)


@pytest.mark.parametrize(
    ("name", "assistant", "results"),
    [
        (
            "deepseek-v3-0324",
            f"{ASSISTANT}Let me look.{FENCED_CALLS}{EOS}",
            OUTPUTS.format(between="\n"),
        ),
        (
            "deepseek-r1-distill-llama",  # writes calls where there is no content, and no other
            f"{ASSISTANT}Let me look.{EOS}{ASSISTANT}{FENCED_CALLS}{EOS}",
            OUTPUTS.format(between="\n"),
        ),
        (
            "deepseek-r1",
            f"{ASSISTANT}Let me look.{FENCED_CALLS}{EOS}",
            OUTPUTS.format(between=""),
        ),
        (
            "deepseek-v3.1",
            f"{ASSISTANT}</think>Let me look.{CALLS_OF_V31}{EOS}",
            (
                "<｜tool▁output▁begin｜>12 °C<｜tool▁output▁end｜>"
                "<｜tool▁output▁begin｜>noon<｜tool▁output▁end｜>"
            ),
        ),
    ],
)
def test_a_conversation_is_written(name, assistant, results):
    """Calls and results go through the template, and after results the answer goes on."""
    text = prompt(name, [SYSTEM, QUESTION, CALLED, *RESULTS])
    assert text == f"{BOS}Be brief.<｜User｜>Weather?{assistant}{results}"
    expected = Thinking.NO if name == "deepseek-v3-0324" else Thinking.MAYBE
    assert profiles[name].thinking_after(text) is expected
    answered = prompt(name, [SYSTEM, QUESTION, CALLED, *RESULTS, {**SYSTEM, "role": "assistant"}])
    assert f"{results}Be brief.{EOS}" in answered


def test_what_is_said_beside_a_call_may_be_nothing():
    """Then nothing is written beside it, also where content and calls stand apart."""
    for name in NAMES:
        text = prompt(name, [QUESTION, {**CALLED, "content": ""}])
        tail = text.removeprefix(f"{BOS}<｜User｜>Weather?{ASSISTANT}").removeprefix("</think>")
        assert tail.startswith(BEGIN)


@pytest.mark.parametrize("name", NAMES)
def test_arguments_that_are_no_json_are_written_as_they_are(name):
    """A client may send back what a model has written."""
    said = {**CALLED, "tool_calls": [history_call(1, "now", '{"a": ')]}
    assert '{"a": ' in prompt(name, [QUESTION, said])


@pytest.mark.parametrize("name", NAMES)
def test_several_system_messages_are_all_written(name):
    """All of them stand before the conversation, in order."""
    later = {"role": "system", "content": "Now in French."}
    text = prompt(name, [SYSTEM, QUESTION, {"role": "assistant", "content": "?"}, later, QUESTION])
    assert text.startswith(f"{BOS}Be brief.\n\nNow in French.<｜User｜>")


@pytest.mark.parametrize("name", FENCED)
def test_tools_are_declared_in_words_of_ours(name):
    """What a call looks like is shown with the markers."""
    text = prompt(name, [SYSTEM, QUESTION], TOOLS)
    head, tools = text.split("<｜User｜>")[0].split("\n\n## Tools\n")
    assert head == f"{BOS}Be brief."
    assert "### get_weather\nDescription: Weather of a city\n" in tools
    assert json.dumps(WEATHER.parameters) in tools
    assert f"{BEGIN}{CALL}function{SEP}NAME\n```json\nARGUMENTS\n```{CALL_END}{END}\n" in tools
    assert prompt(name, [QUESTION], TOOLS).startswith(f"{BOS}## Tools\n")
    assert "Tools" not in prompt(name, [SYSTEM, QUESTION])


def test_tools_are_declared_to_v31_as_it_was_trained():
    """In the words that its model card gives."""
    text = prompt("deepseek-v3.1", [SYSTEM, QUESTION], [WEATHER])
    assert text == (
        f"{BOS}Be brief.\n\n## Tools\nYou have access to the following tools:\n\n"
        "### get_weather\nDescription: Weather of a city\n\nParameters: "
        f"{json.dumps(WEATHER.parameters)}\n\n"
        "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
        f"{BEGIN}{CALL}tool_call_name{SEP}tool_call_arguments{CALL_END}"
        f"{{{{additional_tool_calls}}}}{END}\n\nWhere:\n\n"
        "- `tool_call_name` must be an exact match to one of the available tools\n"
        "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters"
        " Schema\n- For multiple tool calls, chain them directly without separators or spaces\n"
        f"<｜User｜>Weather?{ASSISTANT}</think>"
    )


def test_a_template_that_declares_tools_is_left_to_it():
    """As those that inference servers bring do."""
    source = templates["deepseek-v3.1"].source + "{% if tools %}{{ tools | tojson }}{% endif %}"
    template = ChatTemplate(source)
    messages, variables = families.find(template).template_input([QUESTION], TOOLS, None)
    assert messages == [QUESTION]
    assert template.render(messages, **variables).endswith("]")


class Bytes:
    """A vocabulary of bytes, and markers that are one id each."""

    special_tokens = {marker: 256 + at for at, marker in enumerate(MARKERS)}  # noqa: RUF012

    def encode(self, text, *, special):
        return list(text.encode())


def test_the_markers_in_a_declaration_are_tokens_and_those_that_people_write_are_text():
    """What the model is told is what it reads of its own calls; nobody else can write a call."""
    encoder = PromptEncoder(templates["deepseek-v3.1"], Bytes())
    tool = Tool("now", f"{CALL}x{SEP}")
    messages, variables = V31.template_input([{**SYSTEM, "content": CALL}], [tool], None)
    ids = encoder.token_ids(encoder.render(messages, **variables))
    assert [MARKERS[each - 256] for each in ids if each > 255] == [BEGIN, CALL, SEP, CALL_END, END]


@pytest.mark.parametrize(
    ("name", "effort", "variables", "tail", "thinking"),
    [
        ("deepseek-v3-0324", None, {}, "", Thinking.NO),
        ("deepseek-r1", None, {}, "<think>\n", Thinking.OPEN),
        ("deepseek-r1", "high", {}, "<think>\n", Thinking.OPEN),
        ("deepseek-v3.1", None, {}, "</think>", Thinking.NO),
        ("deepseek-v3.1", "low", {}, "<think>", Thinking.OPEN),
        ("deepseek-v3.1", None, {"thinking": True}, "<think>", Thinking.OPEN),
    ],
)
def test_thinking_is_switched_where_the_model_lets_it(name, effort, variables, tail, thinking):
    """The end of the prompt tells where the answer begins."""
    text = prompt(name, [QUESTION], effort=effort, **variables)
    assert text == f"{BOS}<｜User｜>Weather?{ASSISTANT}{tail}"
    assert profiles[name].thinking_after(text) is thinking
    asked = profiles[name].switches(effort) | variables
    expected = name == "deepseek-v3.1" and thinking is Thinking.OPEN
    assert profiles[name].asks_to_think(asked) is expected


def test_copies_of_a_template_with_another_switch():
    """Some read ``enable_thinking`` where ``thinking`` is not given."""
    source = templates["deepseek-v3.1"].source.replace(
        "set thinking = false", "set thinking = enable_thinking | default(false)"
    )
    template = ChatTemplate(source)
    profile = families.find(template)
    for effort, tail in ((None, "</think>"), ("high", "<think>")):
        messages, variables = profile.template_input([QUESTION], (), effort)
        assert template.render(messages, **variables).endswith(ASSISTANT + tail)
        assert profile.asks_to_think(variables) is (effort is not None)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_read_again(name):
    """The assistant's turn of a history comes out as what it was made of."""
    text = prompt(name, [QUESTION, CALLED, *RESULTS])
    turns = text.split(ASSISTANT)[1:]
    answer = "".join(turn.split(EOS)[0] for turn in turns).removeprefix("</think>")
    content, reasoning, made = readers[name].check(answer, thinking=Thinking.NO).values()
    assert (content, reasoning) == ("Let me look.", "")
    assert made == [("get_weather", {"city": 'Oslo "old"', "days": 2}), ("now", {})]


# Reading


@pytest.mark.parametrize("written", [call, fenced])
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param('{"days": 3}', id="vllm#48342 number"),
        pytest.param('{"days": true}', id="vllm#48342 bool"),
        pytest.param('{"days": [1, {"a": "}"}]}', id="vllm#48342 array"),
        pytest.param('{"a": {"b": {"c": "}}"}}}', id="vllm#48342 brackets"),
        pytest.param('{"a": "\\"}\\n```", "b": "<｜tool"}', id="ends within a text"),
        pytest.param('{\n  "a": 1\n}', id="indented"),
        pytest.param("{}", id="none"),
    ],
)
def test_arguments_are_as_they_were_written(written, arguments):
    """Whatever they end in, with a fence or without."""
    text = f"Look.\n{BEGIN}{written('get_weather', arguments)}{written()}{END}"
    told = transcripts.check(text)
    assert told == Told("Look.", "", calls(("get_weather", arguments), ("now", "{}")))


@pytest.mark.parametrize(
    ("text", "content", "made"),
    [
        pytest.param(f"{BEGIN}{call()}{END}", "", [("now", "{}")], id="vllm#48020"),
        pytest.param(f"{BEGIN}{fenced()}{END}", "", [("now", "{}")], id="tt-inference-server#3683"),
        pytest.param(f"{BEGIN}{BEGIN}{BEGIN}{call()}{END}", "", [("now", "{}")], id="sglang#5224"),
        pytest.param(BEGIN * 50, "", [], id="sglang#5224 and nothing else"),
        pytest.param(f"a{BEGIN}{END}", "a", [], id="vllm#48367"),
        pytest.param(f"a{BEGIN}{CALL}now{SEP}{{}}{CALL_END}", "a", [("now", "{}")], id="no end"),
        pytest.param(f"{CALL}now{SEP}{CALL_END}", "", [("now", "{}")], id="sglang#18236"),
        pytest.param(f"{CALL}function{SEP}now\n{CALL_END}", "", [("now", "{}")], id="no fence"),
        pytest.param(f"{CALL}function{SEP}now\n{{}}{CALL_END}", "", [("now", "{}")], id="bare"),
        pytest.param(f"{CALL}now{SEP}```json\n{{}}\n```{CALL_END}", "", [("now", "{}")], id="mix"),
        pytest.param(
            f"{CALL}function{SEP}now```{{}}```{CALL_END}", "", [("now", "{}")], id="short"
        ),
        pytest.param(f"{CALL} now {SEP} {{}} }}{CALL_END}", "", [("now", "{}")], id="spaces"),
        pytest.param(
            f"{fenced()}\n{fenced()}{END}\nDone.", "Done.", [("now", "{}")] * 2, id="after"
        ),
        pytest.param(f"a {SEP}b{END}{CALL_END}c", "a bc", [], id="stray markers"),
        pytest.param(f"{BEGIN}{call('nope')}{END}", "nope{}", [], id="unknown"),
        pytest.param(
            f"{CALL}function{SEP}no\n```json\n", "functionno\n```json\n", [], id="unnamed"
        ),
        pytest.param(f"{CALL}now{SEP}a", "nowa", [], id="no JSON"),
        pytest.param(f"{CALL}some words", "some words", [], id="no name"),
        pytest.param(f"{CALL}now{call()}", "now", [("now", "{}")], id="begun twice"),
        pytest.param(f"{CALL}now{SEP}", "now", [], id="model ends early"),
    ],
)
def test_forms_of_calls_and_what_is_none(text, content, made):
    """What the readers of others fell over, at once and in pieces; markers are never shown."""
    assert transcripts.check(text) == Told(content, "", calls(*made))
    assert transcripts.check(text, markers_are_tokens=False) == Told(content, "", calls(*made))


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (call("now", '{"a') + call(), '{"a'),
        (fenced("now", '{"a": "b}'), '{"a": "b}'),
        (f'{CALL}now{SEP}{{"a": 1{END}', '{"a": 1'),
    ],
)
def test_a_marker_ends_arguments_whose_json_is_broken(text, arguments):
    """They are as the model wrote them, without the fence, and what follows is not swallowed."""
    told = transcripts.check(text + "Done.")
    assert told.calls[0] == ("now", arguments, True)
    assert told.content == "Done."


def test_a_model_that_ends_within_arguments_leaves_them_as_they_are():
    """The call has been told of."""
    assert transcripts.check(f'{CALL}now{SEP}{{"a": "b\n') == Told(
        "", "", calls(("now", '{"a": "b\n'))
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a <｜tool▁ca", Told("a")),
        (f"a\n{BEGIN}{CALL}function{SEP}get_w", Told("a")),
        (f'a{CALL}now{SEP}{{"a": "b', Told("a", "", (("now", '{"a": "b', False),))),
        (fenced()[: -len(CALL_END)], Told("", "", calls(("now", "{}")))),
    ],
)
def test_max_tokens_shows_no_half_markup(text, told):
    """What had been passed on of arguments stays."""
    assert transcripts.check(text, cut=True) == told


def test_a_long_argument_is_streamed():
    """It is passed on as it comes, and the name before it, once and whole."""
    answer = transcripts.answer(thinking=Thinking.NO)
    text = fenced("get_weather", json.dumps({"city": "a long name " * 20}))
    told = [piece for token in transcripts.token_ids(text) for piece in answer.feed([token]).calls]
    assert [piece.name for piece in told if piece.name] == ["get_weather"]
    assert sum(bool(piece.arguments) for piece in told) > 200


def test_without_tools_its_calls_are_no_calls():
    """Their markers are not shown, for nobody wrote them as a text."""
    told = transcripts.check(f"a {BEGIN}{fenced()}{END}", tools=[])
    assert told == Told("a functionnow\n```json\n{}\n```")


def test_one_call_ends_an_answer_that_may_have_only_one():
    """The answer ends with the arguments of its first call."""
    text = BEGIN + call("get_weather", '{"city": "Oslo"}') + call() + END + "Done."
    told = transcripts.check(text, most_calls=1)
    assert told == Told("", "", calls(("get_weather", '{"city": "Oslo"}')))


@pytest.mark.parametrize(
    ("text", "thinking", "told"),
    [
        pytest.param("hm</think>\n\nHi", Thinking.OPEN, Told("Hi", "hm"), id="vllm#13125 R1"),
        pytest.param("hm</think>Hi", Thinking.OPEN, Told("Hi", "hm"), id="V3.1"),
        pytest.param(
            "<think>\nhm\n</think>\n\nHi", Thinking.MAYBE, Told("Hi", "hm"), id="opens it"
        ),
        pytest.param('{"a": 1}', Thinking.MAYBE, Told('{"a": 1}'), id="sglang#4539 no tags"),
        pytest.param("hm", Thinking.OPEN, Told("", "hm"), id="never ends"),
        pytest.param(
            f"hm{BEGIN}{call()}{END}</think>Hi",
            Thinking.OPEN,
            Told("Hi", "hm", calls(("now", "{}"))),
            id="calls in its thought",
        ),
        pytest.param(
            f"hm{BEGIN} so</think>Hi", Thinking.OPEN, Told("Hi", "hm so"), id="marker in a thought"
        ),
    ],
)
def test_thoughts(text, thinking, told):
    """What is thought ends with its tag, or with a call."""
    assert transcripts.check(text, thinking=thinking) == told


# Properties


words = st.text(alphabet="ab {}\"\\é🐱\n`'", max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\{}[]<>`/é🐱\n', max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
arguments = st.dictionaries(st.text(alphabet='a"é', max_size=3), values, max_size=3)
dumps = st.sampled_from([json.dumps, lambda value: json.dumps(value, indent=2, ensure_ascii=False)])
cuts = st.lists(st.integers(0, 300), max_size=8)


@settings(max_examples=60)
@given(
    thought=st.none() | words,
    content=words,
    made=st.lists(st.tuples(st.sampled_from(["now", "get_weather"]), arguments, dumps), max_size=3),
    in_fences=st.booleans(),
    cuts=cuts,
    died_at=st.integers(0, 300),
)
def test_a_transcript_is_taken_apart(thought, content, made, in_fences, cuts, died_at):
    """Thought, content and calls come out as they were put in, whatever the cuts."""
    written = [(name, dump(value)) for name, value, dump in made]
    text = content if thought is None else f"{thought}</think>{content}"
    if made:
        between = "\n" if in_fences else ""
        blocks = between.join((fenced if in_fences else call)(*one) for one in written)
        text += f"{BEGIN}{blocks}{END}"
    told = transcripts.check(
        text,
        cuts=cuts,
        died_at=died_at,
        thinking=Thinking.NO if thought is None else Thinking.OPEN,
    )
    content = content if thought is None else content.lstrip()
    expected = content.rstrip() if made else content
    assert told == Told(expected, (thought or "").strip(), calls(*written))


fragments = st.sampled_from(
    [
        *MARKERS,
        *["<think>", "</think>", "<", "<｜tool▁", "<｜", "function", "now", "get_weather", "nope"],
        *["\n", " ", "```", "json", "```json\n", "{}", '{"a": "', '"}', "{", "}", '"', "\\", "`"],
        *["text", "é🐱", "STOP", "ST", call(), fenced("get_weather", '{\n "city": "Oslo"\n}')],
        *[f"{CALL}function{SEP}now\n```json\n", f"{CALL}now{SEP}", f"\n```{CALL_END}"],
    ]
)
soups = st.lists(fragments, max_size=14).map("".join)


@settings(max_examples=150)
@given(
    text=soups,
    cuts=cuts,
    died_at=st.integers(0, 300),
    thinking=st.sampled_from(Thinking),
    tools=st.sampled_from([[], TOOLS]),
    most_calls=st.sampled_from([None, 1]),
    stops=st.sampled_from([(), ("STOP",), ("\n", "text{"), ("<｜tool",), ("</th", "a")]),
    cut=st.booleans(),
    as_tokens=st.booleans(),
)
def test_what_comes_out_depends_on_the_text_alone(
    text, cuts, died_at, thinking, tools, most_calls, stops, cut, as_tokens
):
    """However it comes, and no marker is ever shown."""
    told = transcripts.check(
        text,
        cuts=cuts,
        died_at=died_at,
        thinking=thinking,
        tools=tools,
        most_calls=most_calls,
        stops=stops,
        cut=cut,
        markers_are_tokens=as_tokens,
    )
    shown = told.content + told.reasoning + "".join(arguments for _, arguments, _ in told.calls)
    assert not any(marker in shown for marker in MARKERS)


# Held to calls


def both(**options):
    """Return the grammars of V3's and of V3.1's calls."""
    return [
        GrammarTexts(DeepSeekCalls(fenced=is_fenced).grammar(TOOLS, **options))
        for is_fenced in (True, False)
    ]


def test_the_grammar_allows_calls_as_they_are_written():
    """One call or several, of tools that may be called, with arguments of their schema."""
    oslo = '{"city": "Oslo", "days": 2}'
    one_of_v3, one_of_v31 = both(several=False)
    v3, v31 = both(several=True)
    assert v3.allow(f"{BEGIN}{fenced('get_weather', oslo)}\n{fenced()}{END}")
    assert v31.allow(f"{BEGIN}{call('get_weather', oslo)}{call()}{END}")
    assert one_of_v3.allow(f"{BEGIN}{fenced()}{END}")
    assert one_of_v31.allow(f"{BEGIN}{call()}{END}")
    assert not one_of_v31.allow(f"{BEGIN}{call()}{call()}{END}")
    for other in (
        f"{BEGIN}{END}",
        f"{BEGIN}{fenced()}{END}",
        f"{BEGIN}{call()}",
        f"{BEGIN}{call('nope')}{END}",
        f"a{BEGIN}{call()}{END}",
        f"{BEGIN}{call('get_weather', '{}')}{END}",
        BEGIN + call("now", '{"a": 1}') + END,
    ):
        assert not v31.allow(other)


@pytest.mark.parametrize("seed", range(10))
def test_what_the_grammar_allows_is_read_as_calls(seed):
    """Whatever a model makes of it."""
    for texts in both(several=True):
        told = transcripts.check(texts.random(seed), thinking=Thinking.NO)
        content, _, made = told.values()
        assert content == ""
        assert made
        for name, given_arguments in made:
            assert name in {"now", "get_weather"}
            assert ("city" in given_arguments) is (name == "get_weather")


@pytest.mark.parametrize(
    ("name", "effort", "before"),
    [
        ("deepseek-r1", None, "hm</think>\n\n"),
        ("deepseek-v3.1", "high", "hm</think>"),
        ("deepseek-v3.1", None, ""),
        ("deepseek-v3-0324", None, ""),
    ],
)
def test_a_thought_comes_before_what_is_held_to_a_form(name, effort, before):
    """sglang#4539: the answer is where the prompt and the tags say, not where a flag does."""
    profile = profiles[name]
    thinking = profile.thinking_after(prompt(name, [QUESTION], effort=effort))
    options = {
        "thinking": thinking,
        "thinks": profile.asks_to_think(profile.switches(effort)),
        "several": True,
    }
    held = profile.grammar(schema='{"type": "integer"}', tools=(), forced=False, **options)
    assert GrammarTexts(held).allow(f"{before}12")
    forced = profile.grammar(schema=None, tools=[NOW], forced=True, **options)
    written = fenced() if name in FENCED else call()
    assert GrammarTexts(forced).allow(f"{before}{BEGIN}{written}{END}")
    told = readers[name].check(f"{before}12", thinking=thinking)
    assert told == Told("12", "hm" if before else "")
