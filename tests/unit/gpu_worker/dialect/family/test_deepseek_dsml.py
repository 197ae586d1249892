"""DeepSeek V3.2: its template, and how its calls are read, written, and held to."""

import json

import pytest
from grammar_texts import GrammarTexts
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from transcripts import Told, Transcripts

from gpu_worker.dialect import families
from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.family import deepseek_dsml
from gpu_worker.dialect.family.deepseek_dsml import template_for
from gpu_worker.dialect.thinking import Thinking
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.grammar import GrammarError

BOS, EOS, DSML = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "｜DSML｜"
ASSISTANT = "<｜Assistant｜>"
BLOCK, BLOCK_END = "<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"
NOW = Tool("now")
WEATHER = Tool(
    "get_weather",
    "Weather of a city",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "more": {"type": "object"},
        },
        "required": ["city"],
    },
)
ANY = Tool("search", "", {"type": "object"})
TOOLS = [NOW, WEATHER, ANY]
source = template_for({DSML: 1})
assert source is not None
template = ChatTemplate(source)
PROFILE = families.find(template)
transcripts = Transcripts(PROFILE, TOOLS)


def parameter(name, value, kind=None):
    """Write an argument; its kind is that of its value unless it is given."""
    is_text = isinstance(value, str)
    kind = ("true" if is_text else "false") if kind is None else kind
    value = value if is_text else json.dumps(value, ensure_ascii=False)
    return f'<｜DSML｜parameter name="{name}" string="{kind}">{value}</｜DSML｜parameter>'


def invoke(name="now", *parameters, **arguments):
    """Write a call."""
    lines = [*parameters, *(parameter(key, value) for key, value in arguments.items())]
    joined = "\n".join(lines)
    return f'<｜DSML｜invoke name="{name}">\n{joined}\n</｜DSML｜invoke>'


def block(*invocations):
    """Write a block of calls."""
    return "\n\n" + BLOCK + "\n".join(invocations) + BLOCK_END


def calls(*written):
    """Return complete calls, as a client is told of them."""
    return tuple((name, arguments, True) for name, arguments in written)


def prompt(messages, tools=(), effort=None, **variables):
    """Render a prompt as a request with these messages gets it."""
    messages, found = PROFILE.template_input(messages, tools, effort)
    return template.render(messages, **(found | variables))


def history_call(number, name, arguments):
    """Return a call as it stands in a history."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def assistant(content="", reasoning=None, *made):
    """Return an answer of a history."""
    said = {"role": "assistant", "content": content}
    if reasoning is not None:
        said |= {"reasoning": reasoning, "reasoning_content": reasoning}
    return said | ({"tool_calls": list(made)} if made else {})


SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Weather?"}
CALLED = assistant(
    "Let me look.",
    "hm",
    history_call(1, "get_weather", {"city": 'Oslo "old"', "days": 2, "more": {"é": [None, True]}}),
    history_call(2, "now", {}),
)
RESULTS = [
    {"role": "tool", "content": "12 °C", "tool_call_id": "call_1"},
    {"role": "tool", "content": "noon", "tool_call_id": "call_2"},
]
CALLS = block(
    '<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Oslo "old"</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="more" string="false">{"é": [null, true]}</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>",
    '<｜DSML｜invoke name="now">\n\n</｜DSML｜invoke>',
)
WRITTEN_RESULTS = (
    "\n\n<function_results>\n<result>12 °C</result>\n<result>noon</result>\n</function_results>\n\n"
)


# Recognition


def test_its_template_is_for_its_vocabulary_alone():
    """V3.1's has no token for DSML, and V4, whose template its vendor gives, has others besides."""
    assert template_for(["<think>", DSML]) == source
    assert template_for(["<think>", "<｜tool▁sep｜>"]) is None
    assert template_for([DSML, "<｜latest_reminder｜>"]) is None


def test_it_is_recognized():
    """It takes tools, thinks if it is told to, and has one token of its own."""
    assert PROFILE.family == "deepseek_dsml"
    assert PROFILE.features == ["tools", "structured_output", "logprobs", "reasoning"]
    assert PROFILE.markers == {DSML, "<think>", "</think>"}


def test_v4_is_recognized_and_names_the_block_otherwise():
    """Its template is its vendor's; both names are read, and its own is what it is held to."""
    profile = families.find(ChatTemplate(source.replace("function_calls", "tool_calls")))
    assert profile.family == "deepseek_dsml"
    written = block(invoke()).replace("function_calls", "tool_calls")
    assert GrammarTexts(profile.calls.grammar([NOW], several=False)).allow(written)
    assert transcripts.check(written) == Told("", "", calls(("now", "{}")))


# Prompts, after the encoding that DeepSeek published with the model


def test_a_conversation_is_written():
    """Calls as DSML, results in a block, and the answer goes on after them."""
    text = prompt([SYSTEM, QUESTION, CALLED, *RESULTS])
    answer = f"</think>Let me look.{CALLS}{EOS}{WRITTEN_RESULTS}</think>"
    assert text == f"{BOS}Be brief.<｜User｜>Weather?{ASSISTANT}{answer}"
    assert PROFILE.thinking_after(text) is Thinking.NO
    text = prompt([SYSTEM, QUESTION, CALLED, *RESULTS], effort="high")
    answer = f"<think>hm</think>Let me look.{CALLS}{EOS}{WRITTEN_RESULTS}<think>"
    assert text == f"{BOS}Be brief.<｜User｜>Weather?{ASSISTANT}{answer}"
    assert PROFILE.thinking_after(text) is Thinking.OPEN


def test_thoughts_are_kept_for_the_last_question_alone():
    """Before it answers are written without, also after results."""
    messages = [QUESTION, CALLED, *RESULTS, assistant("Warm.", "so"), QUESTION]
    text = prompt(messages, effort="high")
    assert text == (
        f"{BOS}<｜User｜>Weather?{ASSISTANT}</think>Let me look.{CALLS}{EOS}{WRITTEN_RESULTS}"
        f"</think>Warm.{EOS}<｜User｜>Weather?{ASSISTANT}<think>"
    )
    later = [assistant("", "again", history_call(1, "now", {})), RESULTS[0]]
    assert prompt([*messages, *later], effort="high") == (
        f"{text}again</think>{block(invoke())}{EOS}"
        "\n\n<function_results>\n<result>12 °C</result>\n</function_results>\n\n<think>"
    )


@pytest.mark.parametrize(
    ("effort", "variables", "tail", "thinking"),
    [
        (None, {}, "</think>", Thinking.NO),
        ("low", {}, "<think>", Thinking.OPEN),
        (None, {"enable_thinking": True}, "<think>", Thinking.OPEN),
        (None, {"thinking": True}, "<think>", Thinking.OPEN),
        ("low", {"thinking": False}, "</think>", Thinking.NO),
    ],
)
def test_thinking_is_switched(effort, variables, tail, thinking):
    """By either name; the prompt opens the thought, or closes it."""
    text = prompt([QUESTION], effort=effort, **variables)
    assert text == f"{BOS}<｜User｜>Weather?{ASSISTANT}{tail}"
    assert PROFILE.thinking_after(text) is thinking
    asked = PROFILE.switches(effort) | variables
    assert PROFILE.asks_to_think(asked) is (thinking is Thinking.OPEN)


def test_tools_are_declared_after_the_first_system_message():
    """As one line of JSON each, without OpenAI's frame, under what the model was trained on."""
    lines = [json.dumps(tool.as_template_value()["function"]) for tool in (NOW, WEATHER)]
    for system in ([SYSTEM], []):
        text = prompt([*system, QUESTION], [NOW, WEATHER])
        head, _, rest = text.partition("\n\n## Tools\n\nYou have access to a set of tools")
        assert head == BOS + ("Be brief." if system else "")
        assert rest.endswith(
            "<think>...thinking about results</think>\n\nHere are the functions available in"
            f" JSONSchema format:\n<functions>\n{lines[0]}\n{lines[1]}\n</functions>\n"
            f"<｜User｜>Weather?{ASSISTANT}</think>"
        )
        assert f'{BLOCK}<｜DSML｜invoke name="$FUNCTION_NAME">\n<｜DSML｜parameter' in rest
    assert "Tools" not in prompt([SYSTEM, QUESTION])


def test_nothing_of_a_conversation_is_lost():
    """Later system messages stay in place; what is no object of arguments is one of them."""
    later = {"role": "system", "content": "Now in French."}
    raw = assistant("", None, history_call(1, "now", '{"a": '))
    text = prompt([SYSTEM, QUESTION, assistant("Warm."), later, QUESTION, raw])
    assert f"Warm.{EOS}Now in French.<｜User｜>Weather?" in text
    assert parameter("arguments", '{"a": ') in text
    assert text.endswith(f"{EOS}{ASSISTANT}</think>")
    assert prompt([SYSTEM]) == f"{BOS}Be brief.{ASSISTANT}</think>"
    assert prompt([SYSTEM], effort="low") == f"{BOS}Be brief.{ASSISTANT}<think>"


@pytest.mark.parametrize("effort", [None, "high"])
def test_what_is_written_is_read_again(effort):
    """The assistant's turn of a history comes out as what it was made of."""
    text = prompt([QUESTION, CALLED, *RESULTS], effort=effort)
    answer = text.split(ASSISTANT)[1].split(EOS)[0].removeprefix("<think>").removeprefix("</think>")
    thinking = Thinking.OPEN if effort else Thinking.NO
    content, reasoning, made = transcripts.check(answer, thinking=thinking).values()
    assert (content, reasoning) == ("Let me look.", "hm" if effort else "")
    assert made == [
        ("get_weather", {"city": 'Oslo "old"', "days": 2, "more": {"é": [None, True]}}),
        ("now", {}),
    ]


# Reading


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        (parameter("city", 'a "b"\\\n<b>{}'), {"city": 'a "b"\\\n<b>{}'}),
        (parameter("city", ""), {"city": ""}),
        (parameter("city", " 3 "), {"city": " 3 "}),
        (parameter("city", "3", "false"), {"city": "3"}),
        (parameter("city", " [x", "false"), {"city": " [x"}),
        (parameter("city", '"Oslo"', "false"), {"city": "Oslo"}),
        (parameter("days", 3), {"days": 3}),
        (parameter("days", "3"), {"days": 3}),
        (parameter("days", "many"), {"days": "many"}),
        (parameter("days", "", "false"), {"days": ""}),
        (parameter("more", {"a": [1, {"b": "</x>"}]}), {"more": {"a": [1, {"b": "</x>"}]}}),
        (parameter("more", " \n{} ", "false"), {"more": {}}),
        (parameter("x", True), {"x": True}),
        (parameter("x", None), {"x": None}),
        (parameter("x", "None", "false"), {"x": None}),
        (parameter("x", "01", "false"), {"x": "01"}),
        (parameter("x", "[1"), {"x": "[1"}),
        (parameter("x", '"a"', "false"), {"x": "a"}),
        (parameter("city", "a").replace(' string="true"', ""), {"city": "a"}),
        (parameter("days", "3").replace(' string="true"', ""), {"days": 3}),
        (parameter("days", 3) + parameter("days", 4) + parameter("x", 5), {"days": 3, "x": 5}),
    ],
)
def test_an_argument_is_what_its_attribute_and_the_schema_say(written, arguments):
    """A text as it is, all else as JSON; the schema has the last word."""
    told = transcripts.check(block(invoke("get_weather", written)))
    assert told.values() == ("", "", [("get_weather", arguments)])


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ([parameter("arguments", {"city": "Oslo"})], {"city": "Oslo"}),
        ([parameter("input", '{"city": "Oslo", "days": 1}')], {"city": "Oslo", "days": 1}),
        ([parameter("arguments", "{}")], {}),
        ([parameter("arguments", {"x": 1})], {"arguments": {"x": 1}}),
        ([parameter("arguments", "[1]", "false")], {"arguments": [1]}),
        (
            [parameter("arguments", {"city": "Oslo"}), parameter("days", 1)],
            {"arguments": {"city": "Oslo"}, "days": 1},
        ),
        ([parameter("days", 1), parameter("input", "a")], {"days": 1, "input": "a"}),
    ],
)
def test_arguments_that_are_all_in_one(written, arguments):
    """Models write them so; it is unpacked where nothing else can be meant."""
    told = transcripts.check(block(invoke("get_weather", *written)))
    assert told.values() == ("", "", [("get_weather", arguments)])


def test_a_tool_may_have_an_argument_of_that_name():
    """Then it is one like others, as it is where nothing is declared."""
    tool = Tool("run", "", {"properties": {"input": {"type": "object"}, "a": {}}})
    reader = Transcripts(PROFILE, [tool, ANY])
    told = reader.check(block(invoke("run", input={"a": 1}), invoke("search", input={"a": 1})))
    assert told.values()[2] == [("run", {"input": {"a": 1}}), ("search", {"input": {"a": 1}})]


@pytest.mark.parametrize(
    ("text", "content", "made"),
    [
        pytest.param(invoke(), "", ["now"], id="no block"),
        pytest.param(BLOCK + invoke(), "", ["now"], id="no end of the block"),
        pytest.param(BLOCK + '<｜DSML｜invoke name="now">\n', "", ["now"], id="no ends"),
        pytest.param(
            '<｜DSML｜invoke name="now">' + BLOCK_END, "", ["now"], id="no end of the call"
        ),
        pytest.param(block(invoke()) + "\n\nDone.", "Done.", ["now"], id="text after"),
        pytest.param(block(invoke()) + block(invoke()), "", ["now", "now"], id="two blocks"),
        pytest.param("a" + BLOCK, "a<function_calls>\n", [], id="vllm#48367"),
        pytest.param("a" + BLOCK + "b", "a<function_calls>\nb", [], id="no call in it"),
        pytest.param(f"a {DSML}b <{DSML}", "a b <", [], id="vllm#40801 stray"),
        pytest.param(f"a</{DSML}invoke><{DSML}x>", "a</invoke><x>", [], id="vllm#40801 stray tags"),
        pytest.param(
            block(invoke("nope", a="b")).strip(),
            '<function_calls>\n<invoke name="nope">\n<parameter name="a" string="true">b'
            "</parameter>\n</invoke>\n</function_calls>",
            [],
            id="unknown",
        ),
        pytest.param(
            block(invoke(), invoke("nope")),
            '<invoke name="nope">\n\n</invoke>\n</function_calls>',
            ["now"],
            id="unknown after one",
        ),
        pytest.param('<｜DSML｜invoke name="no', '<invoke name="no', [], id="model ends early"),
        pytest.param('<｜DSML｜invoke name="now"x', '<invoke name="now"x', [], id="no tag"),
        pytest.param('<｜DSML｜invoke name="now">\nx', "x", ["now"], id="text in a call"),
        pytest.param(
            '<｜DSML｜invoke name="now">\n<｜DSML｜parameter a',
            "<parameter a",
            ["now"],
            id="no key",
        ),
    ],
)
def test_forms_of_calls_and_what_is_none(text, content, made):
    """What the readers of others fell over; the token is never shown."""
    told = transcripts.check(text)
    assert told == Told(content, "", calls(*((name, "{}") for name in made)))
    assert transcripts.check(text, markers_are_tokens=False) == told


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<｜DSML｜parameter name="city" string="true">Os', '{"city": "Os"}'),
        ('<｜DSML｜parameter name="days" string="false">3', '{"days": 3}'),
        ('<｜DSML｜parameter name="more" string="false">{"a": 1', '{"more": {"a": 1}'),
        ('<｜DSML｜parameter name="ci', "{}"),
        (parameter("city", "Oslo") + "\n</｜DSML｜inv", '{"city": "Oslo"}'),
        (
            parameter("city", "Oslo").replace("</｜DSML｜parameter>", BLOCK_END),
            '{"city": "Oslo\\n"}',
        ),
    ],
)
def test_a_call_that_the_model_ends_without_its_tags(text, arguments):
    """It is completed as far as it goes, and nothing of it is content."""
    text = f'<｜DSML｜invoke name="get_weather">\n{text}'
    assert transcripts.check(text) == Told("", "", calls(("get_weather", arguments)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a <｜DS", Told("a")),
        ("a\n\n" + BLOCK + '<｜DSML｜invoke name="n', Told("a")),
        ("a" + BLOCK + '<｜DSML｜invoke name="now">\n', Told("a", "", (("now", "", False),))),
        (
            'a<｜DSML｜invoke name="now"><｜DSML｜parameter name="x" string="true">b</｜DS',
            Told("a", "", (("now", '{"x": "b', False),)),
        ),
        (block(invoke())[:-9], Told("", "", calls(("now", "{}")))),
    ],
)
def test_max_tokens_shows_no_half_markup(text, told):
    """What had been passed on of arguments stays."""
    assert transcripts.check(text, cut=True) == told


@pytest.mark.parametrize("value", ["a long name " * 20, {"a": ["a long name " * 20]}])
def test_a_long_argument_is_streamed(value):
    """vllm#42878: it is passed on as it comes, and the name before it, once and whole."""
    answer = transcripts.answer(thinking=Thinking.NO)
    text = block(invoke("search", parameter("x", value)))
    told = [piece for token in transcripts.token_ids(text) for piece in answer.feed([token]).calls]
    assert [piece.name for piece in told if piece.name] == ["search"]
    assert sum(bool(piece.arguments) for piece in told) > 200


def test_without_tools_its_calls_are_no_calls():
    """Their token is not shown, for nobody wrote it as a text."""
    told = transcripts.check("a " + block(invoke(a="b")).strip(), tools=[])
    assert told == Told(
        'a <function_calls>\n<invoke name="now">\n<parameter name="a" string="true">b</parameter>\n'
        "</invoke>\n</function_calls>"
    )


def test_one_call_ends_an_answer_that_may_have_only_one():
    """The answer ends with its first call."""
    text = block(invoke("get_weather", city="Oslo"), invoke()) + "Done."
    told = transcripts.check(text, most_calls=1)
    assert told == Told("", "", calls(("get_weather", '{"city": "Oslo"}')))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hm</think>Hi", Told("Hi", "hm")),
        ("hm</think>" + block(invoke()), Told("", "hm", calls(("now", "{}")))),
        (f"hm{block(invoke())}</think>Hi", Told("Hi", "hm", calls(("now", "{}")))),
        (f"hm <{DSML}x></think>Hi", Told("Hi", "hm <x>")),
    ],
)
def test_thoughts(text, told):
    """What is thought ends with its tag, or with a call."""
    assert transcripts.check(text, thinking=Thinking.OPEN) == told


# Properties


words = st.text(alphabet="ab {}\"\\é🐱\n<>'/", max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\{}[]<>/é🐱\n', max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
arguments = st.dictionaries(st.text(alphabet="aé-", min_size=1, max_size=3), values, max_size=3)
cuts = st.lists(st.integers(0, 500), max_size=8)


@settings(max_examples=60)
@given(
    thought=st.none() | words,
    content=words,
    made=st.lists(arguments, max_size=3),
    cuts=cuts,
    died_at=st.integers(0, 500),
)
def test_a_transcript_is_taken_apart(thought, content, made, cuts, died_at):
    """Thought, content and calls come out as they were put in, whatever the cuts."""
    text = content if thought is None else f"{thought}</think>{content}"
    if made:
        text += block(*(invoke("search", **each) for each in made))
    told = transcripts.check(
        text,
        cuts=cuts,
        died_at=died_at,
        thinking=Thinking.NO if thought is None else Thinking.OPEN,
    )
    content = content if thought is None else content.lstrip()
    expected = content.rstrip() if made else content
    assert told.values() == (
        expected,
        (thought or "").strip(),
        [("search", each) for each in made],
    )


fragments = st.sampled_from(
    [
        *[DSML, "<", "</", f"<{DSML}", f"</{DSML}", "function_calls>", "tool_calls>", "invoke"],
        *[BLOCK, BLOCK_END, 'invoke name="now">', '<｜DSML｜invoke name="get_weather">', ">", '"'],
        *['<｜DSML｜parameter name="', 'city" string="true">', 'x" string="false">', 'days">'],
        *["</｜DSML｜parameter>", "</｜DSML｜invoke>", ' name="', "nope", "arguments", "input"],
        *["\n", " ", "text", "é🐱", "STOP", "ST", "<think>", "</think>", "{", "}", '{"a": 1}', "3"],
        *[block(invoke("get_weather", city='a "b"', days=3)), invoke(), parameter("x", [1])],
    ]
)
soups = st.lists(fragments, max_size=14).map("".join)


@settings(max_examples=150)
@given(
    text=soups,
    cuts=cuts,
    died_at=st.integers(0, 500),
    thinking=st.sampled_from(Thinking),
    tools=st.sampled_from([[], TOOLS]),
    most_calls=st.sampled_from([None, 1]),
    stops=st.sampled_from([(), ("STOP",), ("\n", "text{"), ("<invoke",), ("</th", "a")]),
    cut=st.booleans(),
    as_tokens=st.booleans(),
)
def test_what_comes_out_depends_on_the_text_alone(
    text, cuts, died_at, thinking, tools, most_calls, stops, cut, as_tokens
):
    """However it comes, and the token is never shown."""
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
    assert DSML not in shown


# Held to calls


def held(tools, *, several=False):
    """Return the texts that calls of these tools are held to."""
    ends = ("</｜DSML｜parameter>\n", '"', "}", "]")
    return GrammarTexts(PROFILE.calls.grammar(tools, several=several), ends=ends)


def test_the_grammar_allows_calls_as_they_are_written():
    """One call or several, each argument on a line, in the order in which they are declared."""
    oslo = invoke("get_weather", city="Oslo", days=2, more={"a": 1})
    assert held(TOOLS).allow(block(oslo))
    assert held([NOW]).allow(block(invoke()))
    assert held(TOOLS, several=True).allow(block(oslo, oslo))
    assert not held(TOOLS).allow(block(oslo, oslo))
    for other in (
        block(),
        block(invoke("nope")),
        block(oslo).lstrip(),
        block(invoke("get_weather")),
        block(invoke("get_weather", city="Oslo", x=1)),
        block(invoke("get_weather", parameter("city", "Oslo", "false"))),
        block(invoke("get_weather", city="Oslo", days="many")),
        block(oslo) + "\n",
    ):
        assert not held(TOOLS).allow(other)


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        ({"type": "string"}, ["a<b", ""], [1, None]),
        ({"type": "string", "maxLength": 2}, ["ab"], ["abc"]),
        ({"enum": ["a", "b", 1]}, ["a", 1], ["c", 2, "1"]),
        ({"type": "string", "enum": ["a b"]}, ["a b"], ["a"]),
        ({"type": ["string", "null"]}, ["a", None], [1]),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, ["a", 1], [None, 1.5]),
        ({"$ref": "#/$defs/text"}, ["a"], [1]),
        ({"type": "array", "items": {"$ref": "#/$defs/text"}}, [["a"]], [[1], "a"]),
        ({}, ["a", 1, None, {"a": [1]}], []),
        ({"description": "anything"}, ["a", 1], []),
    ],
)
def test_arguments_are_held_to_their_schema(schema, allowed, refused):
    """A text as it is, everything else as JSON."""
    tool = Tool(
        "f",
        "",
        {
            "type": "object",
            "properties": {"a": schema},
            "required": ["a"],
            "$defs": {"text": {"type": "string"}},
        },
    )
    texts = held([tool])
    for value in allowed:
        assert texts.allow(block(invoke("f", a=value)))
    for value in refused:
        assert not texts.allow(block(invoke("f", a=value)))


def test_a_text_of_which_more_is_asked_is_json():
    """What raw text cannot be held to is allowed in quotes, and read as the text that it is."""
    tool = Tool("f", "", {"properties": {"a": {"type": "string", "pattern": "^a+$"}}})
    written = block(invoke("f", parameter("a", '"aa"', "false")))
    assert held([tool]).allow(written)
    assert not held([tool]).allow(written.replace("aa", "ab"))
    assert Transcripts(PROFILE, [tool]).check(written).values()[2] == [("f", {"a": "aa"})]


@pytest.mark.parametrize("additional", [True, {"type": "integer"}])
def test_a_tool_that_declares_nothing_takes_anything(additional):
    """As far as its schema goes."""
    tool = Tool("f", "", {"type": "object", "additionalProperties": additional})
    texts = held([tool])
    assert texts.allow(block(invoke("f", a=1, b=2)))
    assert texts.allow(block(invoke("f", a="b")).replace("\n\n</", "\n</")) is (additional is True)


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}, "anyOf"),
        ({"minProperties": 1}, "minProperties"),
        ({"properties": {'a"': {}}}, "rename"),
    ],
)
def test_what_cannot_be_enforced_is_named(parameters, match):
    """Nothing is silently ignored."""
    with pytest.raises(GrammarError, match=match):
        held([Tool("f", "", {"type": "object", **parameters})])


WIDE = Tool(
    "wide",
    "",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string", "maxLength": 5},
            "word": {"enum": ["a", "b c", 1, None]},
            "code": {"type": "string", "pattern": "^[a-c]{2}$"},
            "maybe": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]},
            "count": {"type": "integer", "minimum": 1, "maximum": 20},
            "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        },
        "required": ["text", "code", "list"],
    },
)


@pytest.mark.parametrize("seed", range(20))
def test_what_the_grammar_allows_is_read_as_valid_calls(seed):
    """Whatever a model makes of it."""
    tools = {"wide": WIDE, "get_weather": WEATHER, "now": NOW}
    reader = Transcripts(PROFILE, list(tools.values()))
    text = held(list(tools.values()), several=True).random(seed)
    content, _, made = reader.check(text, thinking=Thinking.NO).values()
    assert content == ""
    assert made
    for name, given_arguments in made:
        Draft202012Validator(tools[name].arguments_schema()).validate(given_arguments)


@pytest.mark.parametrize(("effort", "before"), [("high", "hm</think>"), (None, "")])
def test_a_thought_comes_before_what_is_held_to_a_form(effort, before):
    """The end of the prompt says whether there is one."""
    thinking = PROFILE.thinking_after(prompt([QUESTION], effort=effort))
    options = {
        "thinking": thinking,
        "thinks": PROFILE.asks_to_think(PROFILE.switches(effort)),
        "several": True,
    }
    answer = PROFILE.grammar(schema='{"type": "integer"}', tools=(), forced=False, **options)
    assert GrammarTexts(answer).allow(f"{before}12")
    forced = PROFILE.grammar(schema=None, tools=[NOW], forced=True, **options)
    assert GrammarTexts(forced).allow(f"{before}{block(invoke())}")


def test_its_template_is_in_the_package():
    """Beside the module, so that a wheel has it as well."""
    assert deepseek_dsml.TEMPLATE.parent.name == "family"
    assert deepseek_dsml.TEMPLATE.read_text(encoding="utf-8") == source
