"""gpt-oss: recognized, prompted, and held to its calls and to JSON."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from grammar_texts import GrammarTexts
from hypothesis import given, settings
from hypothesis import strategies as st
from transcripts import Told, Transcripts

from gpu_worker.dialect import families
from gpu_worker.dialect.chat_template import ChatTemplate, TemplateError
from gpu_worker.dialect.family import harmony
from gpu_worker.dialect.template_traits import Calls, Systems, Traits
from gpu_worker.dialect.thinking import Thinking
from gpu_worker.dialect.tokenizer import JsonTokenizer
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.cpu.constraint import Constraint
from gpu_worker.engine.grammar import GrammarError
from gpu_worker.engine.guidance.lark import lark
from gpu_worker.engine.guidance.vocabulary import Vocabulary

TEMPLATES = Path(__file__).parents[4] / "templates"
TINY = Path(__file__).parents[4] / "models" / "tiny" / "tokenizer.json"
NOW = Tool("now")
WEATHER = Tool(
    "get_weather",
    "Tells the weather.\nOf today.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 9}},
        "required": ["city"],
    },
)
TOOLS = [NOW, WEATHER]
template = ChatTemplate(
    (TEMPLATES / "gpt-oss.jinja").read_text(encoding="utf-8"),
    now=lambda: datetime(2026, 11, 29, tzinfo=UTC),
)
GPT_OSS = families.find(template)
transcripts = Transcripts(GPT_OSS, TOOLS)


def prompt(messages, tools=(), effort=None):
    """Render a prompt as a request with these messages gets it."""
    messages, variables = GPT_OSS.template_input(messages, tools, effort)
    return template.render(messages, **variables)


def turns(messages, tools=()):
    """Render a prompt without what the system and the developer say."""
    text = prompt(messages, tools)
    return text[text.index("<|start|>user") :]


def user(text="Hi"):
    """Return a message of the user."""
    return {"role": "user", "content": text}


def said(content, *calls, thought=""):
    """Return an answer; a call is an id, a name and arguments."""
    message = {"role": "assistant", "content": content}
    if thought:
        message["reasoning"] = message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in calls
        ]
    return message


def result(id_, content):
    """Return a tool's message."""
    return {"role": "tool", "content": content, "tool_call_id": id_}


# Recognition


def test_its_template_is_recognized():
    """It thinks whatever it is told, and a message's end ends no answer."""
    assert GPT_OSS.family == "harmony"
    assert GPT_OSS.traits == Traits(systems=Systems.FIRST, calls=Calls.ALONE)
    assert GPT_OSS.features == ["tools", "structured_output", "logprobs", "reasoning: always"]
    assert GPT_OSS.stop_tokens == ("<|return|>", "<|call|>")
    assert {"<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>"} < GPT_OSS.markers


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.stem)
def test_no_other_template_is_taken_for_it(path):
    """Its markers are no other model's."""
    other = ChatTemplate(path.read_text(encoding="utf-8"))
    assert harmony.matches(other) == (path.name == "gpt-oss.jinja")


# Prompts


@pytest.mark.parametrize(
    ("effort", "level"), [(None, "low"), ("low", "low"), ("medium", "medium"), ("high", "high")]
)
def test_an_effort_is_one_of_three_levels(effort, level):
    """There is no way not to think: that is the least effort."""
    text = prompt([user()], effort=effort)
    assert f"\n\nReasoning: {level}\n\n" in text
    assert text.endswith("<|start|>user<|message|>Hi<|end|><|start|>assistant")
    assert GPT_OSS.thinking_after(text) is Thinking.MAYBE


@pytest.mark.parametrize(
    ("header", "thinking"),
    [
        ("assistant", Thinking.MAYBE),
        ("assistant<|channel|>analysis<|message|>", Thinking.OPEN),
        ("assistant<|channel|>final<|message|>", Thinking.NO),
        ("assistant<|channel|>commentary<|message|>", Thinking.NO),
    ],
)
def test_the_end_of_the_prompt_tells_where_the_answer_begins(header, thinking):
    """Before a header, or in a message that the prompt has begun."""
    assert GPT_OSS.thinking_after(f"<|start|>user<|message|>Hi<|end|><|start|>{header}") is thinking


def test_tools_and_instructions_go_to_the_developer():
    """What the system says first and later, and each tool with all lines of its description."""
    system = {"role": "system", "content": "Be brief."}
    later = {"role": "system", "content": "In French."}
    text = prompt([system, user(), later], TOOLS)
    assert (
        "<|start|>developer<|message|># Instructions\n\nBe brief.\n\nIn French.\n\n"
        "# Tools\n\n## functions\n\nnamespace functions {\n\n"
        "// \ntype now = () => any;\n\n"
        "// Tells the weather.\n// Of today.\ntype get_weather = (_: {\n"
        "city: string,\ndays?: number,\n}) => any;\n\n"
        "} // namespace functions<|end|><|start|>user<|message|>Hi<|end|>"
    ) in text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "enum": [1, 2], "default": 1},
        {"oneOf": [{"type": "integer"}, {"type": "boolean", "default": True}], "default": None},
        {"type": "array", "items": {"type": ["string", "null"]}, "default": ["a"]},
        {"anyOf": [{"$ref": "#/$defs/a"}]},
        True,
    ],
)
def test_any_schema_can_be_shown(schema):
    """Also those whose defaults the template takes for texts."""
    tool = Tool("f", "", {"type": "object", "properties": {"a": schema}})
    assert "type f = (_: {\na?: " in prompt([user()], [tool])


def test_a_running_turn_keeps_its_thoughts_and_a_past_one_does_not():
    """Thoughts of a turn are dropped once it has been answered; what was said never is."""
    called = said("Wait.", ("1", "now", {"a": 1}), thought="Ask.")
    messages = [user(), called, result("1", "noon"), said("Noon.", thought="Tell."), user("And?")]
    call = (
        '<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{"a": 1}<|call|>'
    )
    output = "<|start|>functions.now to=assistant<|channel|>commentary<|message|>noon<|end|>"
    begin, end = "<|start|>assistant<|channel|>", "<|end|>"
    asked = "<|start|>user<|message|>Hi<|end|>"
    past = (
        f"{asked}{begin}final<|message|>Wait.{end}{call}{output}"
        f"{begin}final<|message|>Noon.{end}<|start|>user<|message|>And?<|end|>"
    )
    assert turns(messages) == f"{past}<|start|>assistant"
    running = f"{begin}analysis<|message|>Ask.\n\nWait.{end}{call}{output}<|start|>assistant"
    assert turns(messages[:3]) == f"{asked}{running}"
    assert turns([*messages, *messages[1:3]]) == f"{past}{running}"


def test_several_calls_of_one_answer_become_one_after_the_other():
    """Each with its own result, whose function the template takes from the call before."""
    called = said("", ("1", "now", {}), ("2", "get_weather", '{"city": "Os'))
    text = turns([user(), called, result("2", '{"c": 12}'), result("1", 'a "b"')])
    assert text == (
        "<|start|>user<|message|>Hi<|end|>"
        "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>"
        '<|start|>functions.now to=assistant<|channel|>commentary<|message|>a "b"<|end|>'
        "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>"
        '{"city": "Os<|call|>'
        '<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>{"c": 12}'
        "<|end|><|start|>assistant"
    )


def test_more_results_than_calls_are_all_shown():
    """The last call takes what is left."""
    messages = [user(), said("", ("1", "now", {})), *(result("1", letter) for letter in "abc")]
    assert turns(messages).count("<|start|>functions.now to=assistant") == 3


def test_a_result_without_any_call_is_refused():
    """Nobody knows which function it is of; the template says so."""
    with pytest.raises(TemplateError, match="no previous assistant message with a tool call"):
        prompt([user(), result("1", "x")])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a"\\{};\n é🐱', max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)
arguments = st.dictionaries(st.text('ab"é', max_size=3), values, max_size=3)
phrases = st.text("ab {}é🐱\n", max_size=8).map(str.strip)


@given(
    thought=phrases,
    content=phrases,
    made=st.lists(arguments, min_size=1, max_size=3),
    answer=phrases,
)
@settings(max_examples=40)
def test_a_history_is_read_as_it_was_written(thought, content, made, answer):
    """What the template writes for the model is what the parser reads from the model."""
    calls = [(str(at), "get_weather", each) for at, each in enumerate(made)]
    results = [result(str(at), "") for at in range(len(made))]
    messages = [user(), said(content, *calls, thought=thought), *results]
    output = "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|><|end|>"
    steps = turns(messages).removeprefix("<|start|>user<|message|>Hi<|end|>").split(output)
    told = [transcripts.read(step.removeprefix("<|start|>assistant")) for step in steps[:-1]]
    assert told[0].reasoning == "\n\n".join(text for text in (thought, content) if text)
    assert [each.values()[2] for each in told] == [[("get_weather", each)] for each in made]
    step = turns([user(), said(answer)]).removeprefix("<|start|>user<|message|>Hi<|end|>")
    step = step.removesuffix("<|start|>assistant").removeprefix("<|start|>assistant")
    assert transcripts.read(step) == Told(answer)


# Grammars


def grammar(thinking=Thinking.MAYBE, *, tools=TOOLS, schema=None, forced=True):
    """Return the grammar of a request."""
    return GPT_OSS.grammar(
        thinking=thinking, thinks=False, schema=schema, tools=tools, forced=forced, several=True
    )


THOUGHT = "<|channel|>analysis<|message|>Well {}.<|end|><|start|>assistant"
COMMENTARY = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}"
CALLS = [
    COMMENTARY,
    " to=functions.{}<|channel|>commentary <|constrain|>json<|message|>{}",
    " to=functions.{}<|channel|>commentary json<|message|>{}",
]
CITY = '{"city": "Oslo", "days": 3}'


@pytest.mark.parametrize("thought", ["", THOUGHT])
@pytest.mark.parametrize("form", CALLS)
def test_a_forced_call_may_be_thought_about(thought, form):
    """A thought, then one call in any of the forms that the model uses, and nothing after it."""
    texts = GrammarTexts(grammar())
    text = thought + form.format("get_weather", CITY)
    assert texts.allow(text)
    assert transcripts.read(text).calls == (("get_weather", CITY, True),)
    for other in (
        thought + form.format("nope", "{}"),
        thought + form.format("get_weather", '{"city": 3}'),
        thought + form.format("get_weather", '{"city": "", "days": 10}'),
        text + "x",
        text + "<|start|>assistant" + text,
        thought + "Hello",
        thought + "<|channel|>final<|message|>Hello",
    ):
        assert not texts.allow(other)


def test_a_named_call_is_of_that_function():
    """The grammar knows no other."""
    texts = GrammarTexts(grammar(tools=[NOW]))
    assert texts.allow(COMMENTARY.format("now", "{}"))
    assert not texts.allow(COMMENTARY.format("get_weather", CITY))


def test_where_the_prompt_has_begun_a_message_the_grammar_ends_it():
    """A thought goes on until it ends; anything else is ended at once."""
    call = COMMENTARY.format("now", "{}")
    opened = GrammarTexts(grammar(Thinking.OPEN))
    assert opened.allow(f"Well.<|end|><|start|>assistant{call}")
    assert not opened.allow(call)
    begun = GrammarTexts(grammar(Thinking.NO))
    assert begun.allow(f"<|end|><|start|>assistant{call}")
    text = f"<|end|><|start|>assistant{call}"
    assert transcripts.read(text, thinking=Thinking.NO) == Told(calls=(("now", "{}", True),))


def test_content_in_json_is_a_final_message():
    """After a thought or none; with tools that need not be called, a call will do as well."""
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    final = '<|channel|>final<|message|>{"a": 1}'
    alone = GrammarTexts(grammar(schema=schema, tools=[], forced=False))
    either = GrammarTexts(grammar(schema=schema, forced=False))
    for thought in ("", THOUGHT):
        assert alone.allow(thought + final)
        assert either.allow(thought + final)
        assert not alone.allow(thought + '{"a": 1}')
        assert not alone.allow(thought + '<|channel|>final<|message|>{"a": "b"}')
        assert not alone.allow(thought + COMMENTARY.format("now", "{}"))
        assert either.allow(thought + COMMENTARY.format("now", "{}"))
    assert transcripts.read(final).content == '{"a": 1}'


def test_without_a_call_to_make_or_a_schema_all_is_allowed():
    """There is no grammar then, with tools or without."""
    assert grammar(forced=False) is None
    assert grammar(forced=False, tools=[]) is None


def test_what_a_grammar_allows_is_read_as_a_call():
    """Texts made by following it at random."""
    texts = GrammarTexts(GPT_OSS.calls.grammar(TOOLS, several=True))
    for seed in range(30):
        ((name, text, complete),) = transcripts.read(texts.random(seed)).calls
        assert complete
        value = json.loads(text)
        if name == "get_weather":
            assert isinstance(value["city"], str)
            assert value.keys() <= {"city", "days"}
        else:
            assert (name, value) == ("now", {})


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    """The tiny model's tokens, and harmony's markers as special ones."""
    data = json.loads(TINY.read_text(encoding="utf-8"))
    first = 1 + max(data["model"]["vocab"].values())
    data["added_tokens"] += [
        {**data["added_tokens"][0], "id": first + at, "content": text}
        for at, text in enumerate(sorted(GPT_OSS.markers))
    ]
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    tokenizer = JsonTokenizer.from_file(path)
    ends = [tokenizer.special_tokens[text] for text in GPT_OSS.stop_tokens]
    return tokenizer, Vocabulary.read(path, size=tokenizer.vocab_size, eos_ids=ends)


def test_markers_in_a_grammar_are_tokens_where_the_vocabulary_has_them(vocabulary):
    """Then no text can pass for one, and what ends an answer comes after the call alone."""
    tokenizer, words = vocabulary
    end, call = (tokenizer.special_tokens[text] for text in ("<|end|>", "<|call|>"))
    state = Constraint(words.matcher(lark(grammar(), words.special_tokens)), tokenizer.vocab_size)
    for token in tokenizer.encode(THOUGHT.format("<") + CALLS[2].format("now", "{}"), special=True):
        assert not state.is_complete
        allowed = state.allowed().tolist()
        assert token in allowed
        assert call not in allowed
        state.advance(token)
    assert state.is_complete
    state = Constraint(words.matcher(lark(grammar(), words.special_tokens)), tokenizer.vocab_size)
    for token in tokenizer.encode("<|channel|>analysis<|message|>", special=True):
        state.advance(token)
    for token in tokenizer.encode("<|end|><|start|>assistant", special=False):
        state.advance(token)
    assert tokenizer.special_tokens["<|start|>"] not in state.allowed()
    assert end in state.allowed()


def test_a_schema_that_cannot_be_enforced_is_named():
    """It is refused when the grammar is written, as for every family."""
    tool = Tool("f", "", {"properties": {"a": {"multipleOf": 1_000_003}}})
    with pytest.raises(GrammarError, match="multipleOf"):
        lark(grammar(tools=[tool]), {})
