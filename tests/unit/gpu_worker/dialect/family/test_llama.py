"""Llama 3: recognized, prompted, read, written, and held to its calls."""

import json
from pathlib import Path

import pytest
from grammar_texts import GrammarTexts
from hypothesis import given, settings
from hypothesis import strategies as st
from transcripts import Told, Transcripts

from gpu_worker.dialect import families
from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.family.llama import LlamaCalls
from gpu_worker.dialect.thinking import Thinking
from gpu_worker.dialect.tools import Tool

TEMPLATES = Path(__file__).parents[4] / "templates"
TAG = "<|python_tag|>"
HEADER = "<|start_header_id|>assistant<|end_header_id|>\n\n"
NOW = Tool("now")
WEATHER = Tool(
    "get_weather",
    "Weather",
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
SEARCH = Tool("brave_search", "", {"properties": {"query": {"type": "string"}, "count": {}}})
TOOLS = [NOW, WEATHER, SEARCH]
template = ChatTemplate(
    (TEMPLATES / "llama-3.jinja").read_text(), variables={"bos_token": "<|begin_of_text|>"}
)
LLAMA = families.find(template)
transcripts = Transcripts(LLAMA, TOOLS)


def call(name="now", arguments="{}"):
    """Write a call as the templates do."""
    return f'{{"name": "{name}", "parameters": {arguments}}}'


def calls(*written):
    """Return complete calls, as a client is told of them."""
    return tuple((name, arguments, True) for name, arguments in written)


def prompt(messages, tools=(), effort=None, **variables):
    """Render a prompt as a request with these messages gets it."""
    messages, found = LLAMA.template_input(messages, tools, effort)
    return template.render(messages, date_string="29 Nov 2026", **found, **variables)


# Recognition


def test_its_template_is_recognized():
    """It takes tools, does not think, and ends messages with tokens of its own."""
    assert LLAMA.family == "llama"
    assert LLAMA.features == ["tools", "structured_output", "logprobs"]
    assert LLAMA.markers == {TAG}
    assert LLAMA.stop_tokens == ("<|eom_id|>", "<|eot_id|>", "<|end_of_text|>")


PLAIN_LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}{{ '<|start_header_id|>assistant"
    "<|end_header_id|>\n\n' if add_generation_prompt }}"
)
CALLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|start_header_id|>"
    "{{ m.role }}<|end_header_id|>\n\n{{ m.content }}{% for c in m.tool_calls %}<OPEN>"
    "{{ c.function | tojson }}<CLOSE>{% endfor %}<|eot_id|>{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "family"),
    [
        pytest.param(PLAIN_LLAMA, "plain", id="Llama 3 before tools"),
        pytest.param(CALLS.replace("OPEN", "TOOLCALL>["), "plain", id="Nemotron's calls"),
        pytest.param(
            CALLS.replace("<OPEN>", "<tool_call>").replace("<CLOSE>", "</tool_call>"),
            "hermes",
            id="Hermes' calls in Llama's turns",
        ),
        pytest.param(CALLS.replace("<OPEN>", "<function=x>"), "plain", id="functionary's calls"),
        pytest.param("{{ tools }}{{ raise_exception('<|end_header_id|>') }}", "plain", id="raises"),
    ],
)
def test_other_models_with_its_headers_are_left_alone(source, family):
    """Headers are shared by all that began as a Llama; calls are what makes the family."""
    assert families.find(ChatTemplate(source)).family == family


# Prompts


HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}},
            }
        ],
    },
    {"role": "tool", "content": "12 °C", "tool_call_id": "call_1"},
]


def test_a_conversation_with_tools_is_written():
    """Tools in the first user message, calls as JSON, results under a role of their own."""
    text = prompt(HISTORY, [WEATHER])
    system, user, assistant, result, end = text.split("<|eot_id|>")
    assert system == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n"
        "Cutting Knowledge Date: December 2023\nToday Date: 29 Nov 2026\n\nBe brief."
    )
    assert '"name": "get_weather"' in user
    assert user.endswith("\n\nWeather?")
    assert assistant == (
        HEADER + '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 2}}'
    )
    assert result == '<|start_header_id|>ipython<|end_header_id|>\n\n"12 °C"'
    assert end == HEADER
    assert "ipython" not in prompt(HISTORY[:2])


def test_later_system_messages_stay_where_they_are():
    """The first one is part of the head of every prompt."""
    messages = [*HISTORY[:2], {"role": "system", "content": "Now in French."}, HISTORY[1]]
    text = prompt(messages)
    assert "<|start_header_id|>system<|end_header_id|>\n\nNow in French.<|eot_id|>" in text
    assert text.index("Be brief.") < text.index("Now in French.")


@pytest.mark.parametrize("effort", [None, "low", "high"])
def test_it_does_not_think(effort):
    """An effort changes nothing, for there is nothing to switch on."""
    text = prompt(HISTORY[:2], effort=effort)
    assert text == prompt(HISTORY[:2])
    assert LLAMA.thinking_after(text) is Thinking.NO


@given(
    arguments=st.dictionaries(
        st.text('ab"é', max_size=3),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text('a"\\{};\n é🐱', max_size=6),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
            max_leaves=4,
        ),
        max_size=3,
    )
)
@settings(max_examples=50)
def test_a_call_in_a_history_is_read_as_it_was_written(arguments):
    """What the template writes for the model is what the parser reads from the model."""
    function = {"name": "get_weather", "arguments": arguments}
    called = {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "function": function}]}
    text = prompt([HISTORY[1], called, HISTORY[3]], TOOLS)
    turn = text.split(HEADER)[1].split("<|eot_id|>")[0]
    told = transcripts.read(turn, thinking=Thinking.NO)
    assert told.values() == ("", "", [("get_weather", arguments)])


def test_a_builtin_call_in_a_history_is_read_as_it_was_written():
    """Where the request names built-in tools, the templates write their calls in another form."""
    arguments = {"query": 'what is "42", really?', "count": "3"}
    function = {"name": "brave_search", "arguments": arguments}
    called = {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "function": function}]}
    text = prompt([HISTORY[1], called, HISTORY[3]], builtin_tools=["brave_search"])
    turn = text.split(HEADER)[1].split("<|eom_id|>")[0]
    assert turn == f'{TAG}brave_search.call(query="what is "42", really?", count="3")'
    told = transcripts.read(turn, thinking=Thinking.NO)
    assert told.values() == (
        "",
        "",
        [("brave_search", {"query": 'what is "42", really?', "count": "3"})],
    )


# Answers


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (call(), Told(calls=calls(("now", "{}")))),
        (TAG + call(), Told(calls=calls(("now", "{}")))),
        (f" \n{call()}\n", Told(calls=calls(("now", "{}")))),
        ('{"name": "now", "arguments": {"a": 1}}', Told(calls=calls(("now", '{"a": 1}')))),
        ('{"parameters": {"a": 1}, "name": "now"}', Told(calls=calls(("now", '{"a": 1}')))),
        ('{"type": "function", "name": "now", "parameters": {}}', Told(calls=calls(("now", "{}")))),
        ('{"name": "now", "parameters": {}, "type": "function"}', Told(calls=calls(("now", "{}")))),
        ('{"name": "now", "parameters": null}', Told(calls=calls(("now", "{}")))),
        ('{"name": "now", "parameters": "{\\"a\\": 1}"}', Told(calls=calls(("now", '{"a": 1}')))),
        (TAG + '{"name": "now"}', Told(calls=calls(("now", "{}")))),
        (TAG + '{"id": 7, "name": "now"}', Told(calls=calls(("now", "{}")))),
        (f"Let me see.\n{TAG}{call()}", Told("Let me see.", calls=calls(("now", "{}")))),
        (f"{TAG}def f():\n    pass", Told("def f():\n    pass")),
        (f"{TAG}{{1: 2}}", Told("{1: 2}")),
        (f'{TAG}{{"name": "nope", "parameters": {{}}}}', Told(call("nope"))),
        (f"a{TAG}{TAG}b", Told("ab")),
        (f"{TAG}", Told()),
        (f'{{"name": {TAG}{call()}', Told('{"name":', calls=calls(("now", "{}")))),
        (f'{{"name": "{TAG}"}}', Told('{"name": ""}')),
        ('\n{"a": 1}', Told('\n{"a": 1}')),
        ("{", Told("{")),
        ("{}", Told("{}")),
        ("{ braces } in prose", Told("{ braces } in prose")),
        ('{"name": "now"}', Told('{"name": "now"}')),
        ('{"name": "now", "age": 3}', Told('{"name": "now", "age": 3}')),
        ('{"type": "error", "name": "now"}', Told('{"type": "error", "name": "now"}')),
        (f"{call()}\nDone.\n", Told("Done.\n", calls=calls(("now", "{}")))),
        (f"{call()}; then", Told("then", calls=calls(("now", "{}")))),
        (
            f'{TAG}brave_search.call(query="gold")',
            Told(calls=calls(("brave_search", '{"query": "gold"}'))),
        ),
        (
            f"{TAG}now.call(); {call('get_weather', json.dumps({'city': 'Oslo'}))}",
            Told(calls=calls(("now", "{}"), ("get_weather", '{"city": "Oslo"}'))),
        ),
        (f'{TAG}nope.call(query="gold")', Told('nope.call(query="gold")')),
    ],
)
@pytest.mark.parametrize("markers_are_tokens", [True, False])
def test_what_models_write_is_read(text, told, markers_are_tokens):
    """Every form that models are known to write, and what looks like one; however it is cut."""
    for cuts in ([], range(0, 200, 3)):
        assert told == transcripts.check(
            text, cuts=cuts, markers_are_tokens=markers_are_tokens, thinking=Thinking.NO
        )


TWO = calls(("now", "{}"), ("get_weather", '{"city": "a; b"}'))
SECOND = call("get_weather", '{"city": "a; b"}')


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(
            call("get_weather", '{"more": {"a": {"b": {"c": [{}]}}}}'),
            Told(calls=calls(("get_weather", '{"more": {"a": {"b": {"c": [{}]}}}}'))),
            id="vllm PR#27701: nested arguments",
        ),
        pytest.param(
            f"{call()} I have asked for the time.",
            Told("I have asked for the time.", calls=calls(("now", "{}"))),
            id="vllm PR#19024: prose after the JSON",
        ),
        pytest.param(f"{TAG}{call()};{SECOND}", Told(calls=TWO), id="dynamo#8732: after the tag"),
        pytest.param(f"{call()}; {SECOND}", Told(calls=TWO), id="Rapid-MLX#700: bare JSON"),
        pytest.param(f"{call()}\n{SECOND}", Told(calls=TWO), id="vllm PR#49923: line breaks"),
        pytest.param(f"{call()} ;\n\n{SECOND}", Told(calls=TWO), id="vllm PR#49923: wide gaps"),
        pytest.param(
            f'{call()}\nI used {{searchTool}} and {{"query": "x"}}.',
            Told('I used {searchTool} and {"query": "x"}.', calls=calls(("now", "{}"))),
            id="vllm PR#49923: brackets in the prose after it",
        ),
        pytest.param(
            'Here is a user: {"name": "Alice"}',
            Told('Here is a user: {"name": "Alice"}'),
            id="Rapid-MLX PR#703: a name in prose",
        ),
        pytest.param(
            '{"name": "Alice", "parameters": {}}',
            Told('{"name": "Alice", "parameters": {}}'),
            id="Rapid-MLX PR#703: a name that is no tool's",
        ),
        pytest.param(f"Sure: {call()}", Told(f"Sure: {call()}"), id="JSON that is quoted"),
    ],
)
def test_what_other_parsers_got_wrong(text, told):
    """Each from a public bug report, in one piece (vllm#48294) and in many."""
    for cuts in ([], range(200), range(0, 200, 5)):
        assert told == transcripts.check(text, cuts=cuts, thinking=Thinking.NO)


words = st.text('ab {}"\\;é🐱\n', max_size=8)
# Neither JSON nor a semicolon, which belong to calls.
prose = words.filter(lambda text: not text.lstrip().startswith("{"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a"\\{}[];<|é🐱\n', max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
arguments = st.dictionaries(st.text('a"é', max_size=3), values, max_size=3)
dumps = st.sampled_from([json.dumps, lambda value: json.dumps(value, indent=4, ensure_ascii=False)])


@given(
    content=prose,
    made=st.lists(st.tuples(st.sampled_from(TOOLS), arguments, dumps), max_size=3),
    tagged=st.booleans(),
    after=prose.map(lambda text: text.strip(" ;\n")),
    cuts=st.lists(st.integers(0, 300), max_size=6),
    died_at=st.integers(0, 300),
    markers_are_tokens=st.booleans(),
)
@settings(max_examples=60)
def test_a_transcript_is_taken_apart(
    content, made, tagged, after, cuts, died_at, markers_are_tokens
):
    """Content, calls and what follows come out as they were put in."""
    written = [(tool.name, dump(value)) for tool, value, dump in made]
    tagged = tagged or bool(content.strip())
    text = content + TAG * (tagged and bool(made)) + "; ".join(call(*one) for one in written)
    expected = content.rstrip() if made else content
    if made and after:
        text += f"\n{after}"
        expected = f"{expected}\n\n{after}" if expected else after
    told = transcripts.check(
        text,
        cuts=cuts,
        died_at=died_at,
        markers_are_tokens=markers_are_tokens,
        thinking=Thinking.NO,
    )
    assert told == Told(expected, calls=calls(*written))


fragments = st.sampled_from(
    [
        *[
            TAG,
            "<|python_",
            "<|",
            "{",
            "}",
            '{"name": "now"',
            ', "parameters": ',
            '{"a": "}"}',
            "}",
        ],
        *['{"name": "nope"', '"arguments":', "{}", ";", "; ", ",", '"', "\\", ": ", "[", "]", "\n"],
        *[" ", "text", "é🐱", "STOP", "ST", call(), call("get_weather", '{\n "city": "Oslo"\n}')],
        *["brave_search", ".call(", "query=", '"a"', ")", "', '", "now.call()", "count=3", "null"],
    ]
)
soups = st.lists(fragments, max_size=12).map("".join)


@given(
    text=soups,
    cuts=st.lists(st.integers(0, 200), max_size=8),
    died_at=st.integers(0, 200),
    tools=st.sampled_from([TOOLS, [NOW], []]),
    most_calls=st.sampled_from([None, 1]),
    stops=st.sampled_from([(), ("STOP",), ("\n", "text{"), ("{",), (";", "a")]),
    cut=st.booleans(),
    markers_are_tokens=st.booleans(),
)
@settings(max_examples=150)
def test_what_is_told_depends_on_the_text_alone(
    text, cuts, died_at, tools, most_calls, stops, cut, markers_are_tokens
):
    """However it is cut, and wherever another worker takes over; the tag is never shown."""
    told = transcripts.check(
        text,
        cuts=cuts,
        died_at=died_at,
        cut=cut,
        markers_are_tokens=markers_are_tokens,
        thinking=Thinking.NO,
        tools=tools,
        most_calls=most_calls,
        stops=stops,
    )
    assert TAG not in told.content
    assert not told.reasoning
    assert not (told.calls and not tools)


@given(text=soups)
def test_without_tools_all_but_the_tag_is_content(text):
    """JSON is then an answer like any other."""
    assert transcripts.read(text, thinking=Thinking.NO, tools=[]).content == text.replace(TAG, "")


def test_arguments_come_as_they_are_written():
    """A long text in arguments does not wait for its end, in either form of a call."""
    for text in (call("get_weather", '{"city": "')[:-1], f'{TAG}brave_search.call(query="'):
        answer = transcripts.answer(thinking=Thinking.NO)
        answer.feed(transcripts.token_ids(text))
        for letter in "Oslo":
            (piece,) = answer.feed(transcripts.token_ids(letter)).calls
            assert piece.arguments == letter


def test_an_answer_in_json_does_not_wait():
    """With tools it waits for its first key, without any for nothing."""
    for tools, shown in (([], "{"), (TOOLS, "")):
        answer = transcripts.answer(thinking=Thinking.NO, tools=tools)
        assert answer.feed(transcripts.token_ids("{")).content == shown
        assert answer.feed(transcripts.token_ids('"answer"')).content.endswith('"answer"')
        assert answer.feed(transcripts.token_ids(": ")).content == ":"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"na', Told()),
        ('{"name": "now"', Told()),
        ('{"name": "now", "parameters": {"a": "b', Told(calls=(("now", '{"a": "b', False),))),
        ("a <|python_", Told("a")),
        (f"{TAG}brave_sea", Told()),
        (
            f'{TAG}brave_search.call(query="a"',
            Told(calls=(("brave_search", '{"query": "a', False),)),
        ),
        (f"{call()};", Told(calls=calls(("now", "{}")))),
        ('{"answer": 4', Told('{"answer": 4')),
    ],
)
def test_max_tokens_cuts_a_call_away(text, told):
    """Half a call is not shown as content; what has been told of it stays."""
    assert told == transcripts.check(text, cut=True, thinking=Thinking.NO)


def test_one_call_ends_an_answer_that_may_have_only_one():
    """The answer ends with the arguments of its first call."""
    told = transcripts.check(f"{call()}; {SECOND}", most_calls=1, thinking=Thinking.NO)
    assert told == Told(calls=calls(("now", "{}")))


# Grammar

several = GrammarTexts(LlamaCalls().grammar([NOW, WEATHER], several=True))
one = GrammarTexts(LlamaCalls().grammar([WEATHER], several=False))


def test_the_grammar_allows_calls_and_nothing_else():
    """One call or several, of the tools that may be called, with arguments of their types."""
    oslo = call("get_weather", '{"city": "Oslo", "days": 2}')
    assert several.allow(call())
    assert several.allow(f"{call()}; {oslo}")
    assert one.allow(oslo)
    assert not one.allow(f"{oslo}; {oslo}")
    assert not one.allow(call())
    assert not one.allow(call("get_weather", '{"city": 3}'))
    assert not one.allow(call("get_weather", "{}"))
    assert not several.allow(f"Sure: {call()}")
    assert not several.allow(f"{call()}; ")


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=30)
def test_what_the_grammar_allows_is_read(seed):
    """Texts that follow the grammar at random are calls, and valid ones."""
    told = transcripts.check(several.random(seed), thinking=Thinking.NO)
    content, _, made = told.values()
    assert content == ""
    assert made
    for name, given_arguments in made:
        assert (name == "now") == (given_arguments == {})
        assert name == "now" or isinstance(given_arguments["city"], str)


def test_a_grammar_that_allows_content_as_well_has_both():
    """Tools that may be called and JSON that may be said: the answer is the one or the other."""
    schema = json.dumps({"type": "object", "properties": {"name": {"type": "string"}}})
    grammar = LLAMA.grammar(
        thinking=Thinking.NO, thinks=False, schema=schema, tools=TOOLS, forced=False, several=False
    )
    texts = GrammarTexts(grammar)
    assert texts.allow('{"answer": 4}')
    assert texts.allow('{"name": "Alice"}')
    assert texts.allow('{"name": "now"}')
    assert texts.allow(call())
    assert not texts.allow('{"name": 4}')
