"""Mistral: recognized, prompted, and held to its calls."""

import json
from pathlib import Path
from types import MappingProxyType

import pytest
from grammar_texts import GrammarTexts
from hypothesis import given, settings
from hypothesis import strategies as st
from transcripts import Transcripts

from gpu_worker.dialect import families
from gpu_worker.dialect.chat_template import ChatTemplate, PromptEncoder, TemplateError
from gpu_worker.dialect.family.mistral import MistralCalls
from gpu_worker.dialect.family.mistral_history import short_id
from gpu_worker.dialect.thinking import Thinking
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.grammar import GrammarError
from gpu_worker.engine.guidance.lark import lark

TEMPLATES = Path(__file__).parents[4] / "templates"
NAMES = [
    *["mistral-v3", "mistral-v7", "mistral-v11", "magistral-2506"],
    *["mistral-v13-reasoning", "mistral-v15"],
]
NOW = Tool("now")
WEATHER = Tool(
    "get_weather",
    "Weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
TOOLS = [NOW, WEATHER]


def template_of(name):
    """Return one of the templates here."""
    text = (TEMPLATES / f"{name}.jinja").read_text()
    return ChatTemplate(text, variables={"bos_token": "<s>", "eos_token": "</s>"})


ALL = {name: template_of(name) for name in NAMES}


def prompt(name, messages, tools=(), effort=None):
    """Render a prompt as a request with these messages gets it."""
    messages, variables = families.find(ALL[name]).template_input(messages, tools, effort)
    return ALL[name].render(messages, **variables)


# Recognition


@pytest.mark.parametrize(
    ("name", "reasoning"),
    [
        *[("mistral-v3", []), ("mistral-v7", []), ("mistral-v11", [])],
        *[(name, ["reasoning: always"]) for name in ("magistral-2506", "mistral-v13-reasoning")],
        ("mistral-v15", ["reasoning"]),
    ],
)
def test_its_templates_are_recognized(name, reasoning):
    """By their markers; only the latest have a switch for their thoughts."""
    profile = families.find(ALL[name])
    assert profile.family == "mistral"
    assert profile.features == ["tools", "structured_output", "logprobs", *reasoning]
    assert profile.markers >= {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}
    assert profile.stop_tokens == ("</s>",)


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}[INST]{{ m.content }}[/INST]{% endfor %}",
        "{{ tools }}{% for m in messages %}[INST]{{ m.content }}[/INST]{% endfor %}",
        "{{ tools }}<|im_start|>[TOOL_CALLS]",
    ],
)
def test_templates_without_calls_of_its_kind_are_left_alone(source):
    """Those before tokenizer v2, and of models that took the markers for something else."""
    assert families.find(ChatTemplate(source)).family == "plain"


# Prompts


SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Weather?"}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": 'Oslo "é"', "days": 2}},
}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "12 °C", "tool_call_id": "call_1"}
HISTORY = [SYSTEM, USER, CALLED, RESULT]
TOOL_TEXT = json.dumps([WEATHER.as_template_value()], ensure_ascii=False)
ARGUMENTS = '{"city": "Oslo \\"é\\"", "days": 2}'
ID = short_id("call_1")
LIST = f'[{{"name": "get_weather", "arguments": {ARGUMENTS}, "id": "{ID}"}}]'
SETTINGS = '[MODEL_SETTINGS]{"reasoning_effort": "none"}[/MODEL_SETTINGS]'


PROMPTS = {
    "mistral-v3": (
        f"<s>[AVAILABLE_TOOLS]{TOOL_TEXT}[/AVAILABLE_TOOLS][INST]Be brief.\n\nWeather?[/INST]"
        f'[TOOL_CALLS]{LIST}</s>[TOOL_RESULTS]{{"content": "12 °C", "call_id": "{ID}"}}'
        "[/TOOL_RESULTS]"
    ),
    "mistral-v7": (
        f"<s>[SYSTEM_PROMPT] Be brief.[/SYSTEM_PROMPT][AVAILABLE_TOOLS] {TOOL_TEXT}"
        f"[/AVAILABLE_TOOLS][INST] Weather?[/INST][TOOL_CALLS] {LIST}</s>"
        f"[TOOL_RESULTS] {ID}[TOOL_CONTENT] 12 °C[/TOOL_RESULTS]"
    ),
    "mistral-v11": (
        f"<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][AVAILABLE_TOOLS]{TOOL_TEXT}"
        f"[/AVAILABLE_TOOLS][INST]Weather?[/INST][TOOL_CALLS]get_weather[CALL_ID]{ID}"
        f"[ARGS]{ARGUMENTS}</s>[TOOL_RESULTS]{ID}[TOOL_CONTENT]12 °C[/TOOL_RESULTS]"
    ),
    "mistral-v13-reasoning": (
        f"<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][AVAILABLE_TOOLS]{TOOL_TEXT}"
        f"[/AVAILABLE_TOOLS][INST]Weather?[/INST][TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}</s>"
        "[TOOL_RESULTS]12 °C[/TOOL_RESULTS]"
    ),
    "mistral-v15": (
        f"<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][AVAILABLE_TOOLS]{TOOL_TEXT}"
        f"[/AVAILABLE_TOOLS]{SETTINGS}[INST]Weather?[/INST][TOOL_CALLS]get_weather[ARGS]"
        f"{ARGUMENTS}</s>[TOOL_RESULTS]12 °C[/TOOL_RESULTS]"
    ),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_a_conversation_with_tools_is_written(name):
    """In each version's own form; ids of ours become such as the templates accept."""
    assert prompt(name, HISTORY, [WEATHER]) == PROMPTS[name]


@pytest.mark.parametrize("name", NAMES)
def test_no_system_message_is_lost(name):
    """Wherever it stands, and also when the last message is a result."""
    later = {"role": "system", "content": "Now in French."}
    answer = {"role": "assistant", "content": "Cold."}
    text = prompt(name, [*HISTORY, answer, later, USER, CALLED, RESULT])
    assert text.index("Be brief.") < text.index("Now in French.")


@pytest.mark.parametrize("name", NAMES)
def test_messages_that_the_templates_would_refuse_are_made_to_fit(name):
    """Two of a user in a row, and words beside a call."""
    spoken = {**CALLED, "content": "Let me see."}
    text = prompt(name, [USER, USER, spoken, RESULT])
    assert "Weather?\n\nWeather?[/INST]" in text
    assert ("Let me see.[TOOL_CALLS]" in text) == (name != "mistral-v3")


def test_a_template_that_still_refuses_says_why():
    """Its message is what the client is told."""
    with pytest.raises(TemplateError, match="have to alternate"):
        prompt("mistral-v7", [USER, CALLED, RESULT, USER])


# Thinking


@pytest.mark.parametrize(
    ("effort", "setting"), [(None, "none"), ("low", "high"), ("medium", "high"), ("high", "high")]
)
def test_the_latest_models_are_told_of_their_effort(effort, setting):
    """Of efforts that their template does not know, the next higher one counts."""
    profile = families.find(ALL["mistral-v15"])
    text = prompt("mistral-v15", [USER], effort=effort)
    assert f'{{"reasoning_effort": "{setting}"}}' in text
    _, variables = profile.template_input([USER], [], effort)
    assert profile.asks_to_think(variables) == (effort is not None)
    assert profile.thinking_after(text) is Thinking.MAYBE


@pytest.mark.parametrize(
    ("accepted", "effort", "setting"),
    [
        (("none", "low", "medium", "high"), "medium", "medium"),
        (("none", "low", "medium"), "high", "medium"),
        (("low", "high"), None, "low"),
        (("low", "high"), "medium", "high"),
    ],
)
def test_efforts_are_what_the_template_accepts(accepted, effort, setting):
    """Mistral Large 4 knows more of them; what always thinks gets the least."""
    source = (TEMPLATES / "mistral-v15.jinja").read_text()
    template = ChatTemplate(source.replace("('none', 'high')", repr(accepted)))
    profile = families.find(template)
    assert profile.accepted_efforts == accepted
    assert profile.switches(effort) == {"reasoning_effort": setting}
    assert profile.can_be_kept_from_thinking == ("none" in accepted)


INSTRUCTIONS = {
    "mistral-v13-reasoning": "Think first, like this:[THINK]Your thoughts.[/THINK]Then answer.",
    "magistral-2506": "Think first, like this:\n<think>\nYour thoughts.\n</think>\n\nThen answer.",
}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_native_reasoning_is_asked_for_in_the_system_message(name):
    """By the template itself, or before the client's own message if an effort is asked for."""
    told = f"[SYSTEM_PROMPT]{INSTRUCTIONS[name]}"
    assert f"{told}[/SYSTEM_PROMPT]" in prompt(name, [USER])
    assert f"{told}\n\nBe brief.[/SYSTEM_PROMPT]" in prompt(name, [SYSTEM, USER], effort="low")
    plain = prompt(name, [SYSTEM, USER])
    assert "[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT]" in plain
    # What the system message says of thoughts tells nothing of where the answer begins
    # (vllm PR#44596).
    profile = families.find(ALL[name])
    for effort in (None, "low"):
        text = prompt(name, [SYSTEM, USER], effort=effort)
        assert profile.thinking_after(text) is Thinking.MAYBE


class Tokenizer:
    """Knows which texts are special."""

    special_tokens = MappingProxyType({"[THINK]": 34, "[/THINK]": 35})


def test_the_markers_in_instructions_are_tokens_and_a_clients_are_text():
    """The template writes the former; nothing that a client says becomes a control token."""
    name = "mistral-v13-reasoning"
    profile = families.find(ALL[name])
    said = {"role": "user", "content": "What is [THINK]?"}
    messages, variables = profile.template_input([SYSTEM, said], [], "high")
    text = PromptEncoder(ALL[name], Tokenizer()).render(messages, **variables).text
    assert (text.count("[THINK]"), text.count("[/THINK]")) == (1, 1)
    assert INSTRUCTIONS[name] in text


@pytest.mark.parametrize("name", ["mistral-v13-reasoning", "mistral-v15", "magistral-2506"])
def test_thoughts_stay_in_a_history(name):
    """Mistral's own library writes all that it is given."""
    said = {
        "role": "assistant",
        "content": "Cold.",
        "reasoning": "Oslo.",
        "reasoning_content": "Oslo.",
    }
    thoughts = families.find(ALL[name]).thoughts
    assert f"{thoughts.begin}Oslo.{thoughts.end}Cold.</s>" in prompt(name, [USER, said, USER])


# Round trip


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a"\\{};\n é🐱', max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)


@given(
    name=st.sampled_from(NAMES),
    arguments=st.lists(
        st.dictionaries(st.text('ab"é', max_size=3), values, max_size=3), min_size=1, max_size=3
    ),
    content=st.sampled_from(["", "Let me see."]),
    thought=st.sampled_from(["", "Hm, é."]),
)
@settings(max_examples=60)
def test_a_call_in_a_history_is_read_as_it_was_written(name, arguments, content, thought):
    """What the template writes for the model is what the parser reads from the model."""
    made = [
        {"id": f"call_{at}", "function": {"name": "get_weather", "arguments": each}}
        for at, each in enumerate(arguments)
    ]
    profile = families.find(ALL[name])
    thought = thought if profile.thoughts else ""
    content = "" if name == "mistral-v3" else content
    called = {"role": "assistant", "content": content, "tool_calls": made, "reasoning": thought}
    results = [{"role": "tool", "content": "x", "tool_call_id": each["id"]} for each in made]
    text = prompt(name, [USER, called, *results], TOOLS)
    turn = text.split("[/INST]")[1].split("</s>")[0]
    told = Transcripts(profile, TOOLS).check(turn, cuts=range(0, 200, 7))
    content = f" {content}" if content and name == "mistral-v7" else content
    assert told.values() == (content, thought, [("get_weather", each) for each in arguments])


# Grammar


def calls(name):
    """Return how a model with that template writes calls."""
    return families.find(ALL[name]).calls


OSLO = '{"city": "Oslo", "days": 2}'
TWO = {
    "mistral-v3": '[TOOL_CALLS][{"name": "now", "arguments": {}}, '
    f'{{"name": "get_weather", "arguments": {OSLO}, "id": "a1B2c3D4e"}}]',
    "mistral-v7": '[TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "123456789"}, '
    f'{{"name": "get_weather", "arguments": {OSLO}}}]',
    "mistral-v11": f"[TOOL_CALLS]now[ARGS]{{}}[TOOL_CALLS]get_weather[ARGS]{OSLO}",
    "mistral-v15": f"[TOOL_CALLS]now[ARGS]{{}}[TOOL_CALLS]get_weather[ARGS]{OSLO}",
}
ONE = {
    "mistral-v3": f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {OSLO}}}]',
    "mistral-v7": f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {OSLO}}}]',
    "mistral-v11": f"[TOOL_CALLS]get_weather[ARGS]{OSLO}",
    "mistral-v15": f"[TOOL_CALLS]get_weather[ARGS]{OSLO}",
}
several = {name: GrammarTexts(calls(name).grammar(TOOLS, several=True)) for name in TWO}
one = {name: GrammarTexts(calls(name).grammar([WEATHER], several=False)) for name in TWO}


@pytest.mark.parametrize("name", TWO)
def test_the_grammar_allows_calls_and_nothing_else(name):
    """One call or several, in the version's own form, with arguments of their types."""
    assert several[name].allow(TWO[name])
    assert several[name].allow(ONE[name])
    assert one[name].allow(ONE[name])
    assert not one[name].allow(TWO[name])
    assert not one[name].allow(ONE[name].replace('"Oslo"', "3"))
    assert not one[name].allow(ONE[name].replace(OSLO, "{}"))
    assert not one[name].allow(ONE[name].replace("get_weather", "now"))
    assert not several[name].allow(f"Sure: {ONE[name]}")
    assert not several[name].allow(ONE[name].replace("[TOOL_CALLS]", ""))
    other = "mistral-v3" if name in {"mistral-v11", "mistral-v15"} else "mistral-v11"
    assert not several[name].allow(ONE[other])


@given(seed=st.integers(0, 1 << 32), name=st.sampled_from(list(TWO)))
@settings(max_examples=40)
def test_what_the_grammar_allows_is_read(seed, name):
    """Texts that follow the grammar at random are calls, and valid ones."""
    answers = Transcripts(families.find(ALL[name]), TOOLS)
    content, reasoning, made = answers.check(several[name].random(seed)).values()
    assert (content, reasoning) == ("", "")
    assert made
    for called, arguments in made:
        assert (called == "now") == (arguments == {})
        assert called == "now" or isinstance(arguments["city"], str)


@pytest.mark.parametrize("name", ["mistral-v15", "magistral-2506"])
def test_a_thought_may_stand_before_a_call_if_the_model_is_asked_to_think(name):
    """One that cannot be told not to is kept from it."""
    profile = families.find(ALL[name])
    begin, end, after = profile.thoughts.begin, profile.thoughts.end, profile.thoughts.after
    thought = f"{begin}\nI call.\n{end}{after}"
    for thinks in (True, False):
        grammar = profile.grammar(
            thinking=Thinking.MAYBE,
            thinks=thinks,
            schema=None,
            tools=TOOLS,
            forced=True,
            several=False,
        )
        texts = GrammarTexts(grammar)
        assert texts.allow(ONE["mistral-v11"])
        assert texts.allow(thought + ONE["mistral-v11"]) == thinks


def test_markers_are_tokens_in_the_grammar_of_a_vocabulary_that_has_them():
    """No text can stand for a control token."""
    text = lark(
        calls("mistral-v15").grammar([NOW], several=True), {"[TOOL_CALLS]": 9, "[ARGS]": 32}
    )
    assert '<[9]> "now" <[32]>' in text


def test_arguments_that_cannot_be_enforced_are_refused():
    """The message names the keyword of the JSON Schema."""
    tool = Tool("now", "", {"properties": {"a": {"type": "number", "multipleOf": 1000003}}})
    for lists in (True, False):
        grammar = MistralCalls(lists=lists, space=False).grammar([tool], several=False)
        with pytest.raises(GrammarError, match="multipleOf"):
            lark(grammar, {})
