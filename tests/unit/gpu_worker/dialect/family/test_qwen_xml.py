"""Models whose calls are tags with texts between them: recognized, prompted, held to their calls."""

import json
from pathlib import Path

import jsonschema
import pytest
from grammar_texts import GrammarTexts
from transcripts import Transcripts

from gpu_worker.dialect import families
from gpu_worker.dialect.chat_template import ChatTemplate, TemplateError
from gpu_worker.dialect.family.qwen_xml import QwenXmlCalls
from gpu_worker.dialect.thinking import Thinking
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.grammar import GrammarError

TEMPLATES = Path(__file__).parents[4] / "templates"
CODER, *GENERAL = NAMES = ["qwen-3-coder", "qwen-3.5", "qwen-3.6", "qwen-3.8"]
templates = {name: ChatTemplate((TEMPLATES / f"{name}.jinja").read_text()) for name in NAMES}
profiles = {name: families.find(template) for name, template in templates.items()}

WRITE = Tool(
    "write_file",
    "Write a file",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "text": {"type": ["string", "null"]},
            "mode": {"type": "integer"},
            "lines": {"type": "array", "items": {"type": "integer"}},
            "quiet": {"type": "boolean"},
        },
        "required": ["path"],
    },
)
NOW = Tool("now")
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Save it."}
ARGUMENTS = {
    "path": "01",
    "text": 'if a < b:\n    "é🐱"\n',
    "mode": 7,
    "lines": [1, 2],
    "quiet": True,
}


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


@pytest.mark.parametrize(
    ("name", "reasoning"), [(CODER, []), *((name, ["reasoning"]) for name in GENERAL)]
)
def test_its_templates_are_recognized(name, reasoning):
    """By the calls that they write."""
    profile = profiles[name]
    assert profile.family == "qwen_xml"
    assert profile.features == ["tools", "structured_output", "logprobs", *reasoning]
    assert profile.markers >= {"<tool_call>", "</tool_call>"}


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}<function={{ m.content }}>{% endfor %}",
        "{{ tools }}{% for m in messages %}<function=probe>{% endfor %}",
        "{{ tools }}{{ raise_exception('<function=probe>') }}",
    ],
)
def test_templates_with_other_calls_are_left_alone(source):
    """The tag of a function alone says nothing."""
    assert families.find(ChatTemplate(source)).family == "plain"


@pytest.mark.parametrize("name", GENERAL)
@pytest.mark.parametrize(
    ("effort", "end", "thinking"),
    [
        (None, "<|im_start|>assistant\n<think>\n\n</think>\n\n", Thinking.NO),
        ("low", "<|im_start|>assistant\n<think>\n", Thinking.OPEN),
        ("medium", "<|im_start|>assistant\n<think>\n", Thinking.OPEN),
        ("high", "<|im_start|>assistant\n<think>\n", Thinking.OPEN),
    ],
)
def test_thinking_is_switched(name, effort, end, thinking):
    """Off, the prompt closes the thought; on, it opens it."""
    text = prompt(name, [USER], effort=effort)
    assert text.endswith(end)
    assert profiles[name].thinking_after(text) is thinking


def test_a_coder_does_not_think():
    """An effort changes nothing."""
    text = prompt(CODER, [USER], effort="high")
    assert text == "<|im_start|>user\nSave it.<|im_end|>\n<|im_start|>assistant\n"
    assert profiles[CODER].thinking_after(text) is Thinking.NO


@pytest.mark.parametrize(
    ("effort", "told"), [("low", "set to low"), ("medium", None), ("high", "set to xhigh")]
)
def test_efforts_have_the_names_that_the_template_knows(effort, told):
    """Qwen 3.8 refuses "high", and says nothing of the effort in the middle."""
    text = prompt("qwen-3.8", [USER], effort=effort)
    assert (told or "Reasoning effort") in text if told else "Reasoning effort" not in text


@pytest.mark.parametrize("name", NAMES)
def test_no_system_message_is_lost(name):
    """Where only a first one is allowed, they are one."""
    later = {"role": "system", "content": "Now in French."}
    history = [SYSTEM, USER, {"role": "assistant", "content": "Done."}, later, USER]
    text = prompt(name, history, [NOW])
    assert "Be brief." in text
    assert "Now in French." in text
    assert text.count("Save it.") == 2


@pytest.mark.parametrize("name", NAMES)
def test_tools_are_shown(name):
    """As JSON, or as tags in Qwen3-Coder's prompts."""
    text = prompt(name, [SYSTEM, USER], [WRITE])
    if name == CODER:
        assert "<function>\n<name>write_file</name>\n<description>Write a file</desc" in text
    else:
        assert f"<tools>\n{json.dumps(WRITE.as_template_value())}\n</tools>" in text
    assert "<tools>" not in prompt(name, [SYSTEM, USER])


@pytest.mark.parametrize("name", NAMES)
def test_calls_and_results_are_written(name):
    """Each argument between its tags; results in a turn of the user's."""
    calls = [("write_file", ARGUMENTS), ("now", {})]
    text = prompt(name, [USER, *called(*calls, content="Sure.")], [WRITE, NOW])
    told, true = "Sure.\n\n", "True" if name in (CODER, "qwen-3.5") else "true"
    assert (
        f"{told}<tool_call>\n<function=write_file>\n<parameter=path>\n01\n</parameter>\n"
        '<parameter=text>\nif a < b:\n    "é🐱"\n\n</parameter>\n'
        "<parameter=mode>\n7\n</parameter>\n<parameter=lines>\n[1, 2]\n</parameter>\n"
        f"<parameter=quiet>\n{true}\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n"
    ) in text
    for at in range(2):
        assert f"<tool_response>\ndone {at}\n</tool_response>" in text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arguments", ['{"path": "a', "[1]", "not JSON"])
def test_arguments_that_are_no_object_are_shown_all_the_same(name, arguments):
    """A model's broken call in the history does not make the conversation impossible."""
    text = prompt(name, [USER, *called(("write_file", arguments))])
    assert f"<function=write_file>\n<parameter=arguments>\n{arguments}\n</parameter>" in text


@pytest.mark.parametrize("name", GENERAL)
def test_thoughts_are_kept_as_the_template_wants_them(name):
    """Those since the last question; Qwen 3.8 keeps them all."""
    first = {"role": "assistant", "content": "Yes.", "reasoning_content": "an old thought"}
    last = called(("now", {}), reasoning_content="a new thought")
    text = prompt(name, [USER, first, USER, *last], [NOW], effort="low")
    assert ("<think>\nan old thought\n</think>\n\nYes." in text) is (name == "qwen-3.8")
    assert "<think>\na new thought\n</think>\n\n<tool_call>" in text


@pytest.mark.parametrize("name", GENERAL)
def test_a_template_says_what_it_refuses(name):
    """A conversation without a question."""
    with pytest.raises(TemplateError, match="No user query found"):
        prompt(name, [SYSTEM, {"role": "assistant", "content": "Hello."}])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", ["", "Let me see.\nOne moment."])
@pytest.mark.parametrize("reasoning", ["", "They want it\n\nsaved."])
@pytest.mark.parametrize("calls", [[], [("now", {})], [("write_file", ARGUMENTS), ("now", {})]])
def test_what_a_template_writes_is_read_again(name, content, reasoning, calls):
    """The assistant's turn, cut out of a rendered history, has the same thoughts and calls."""
    answer, *results = called(*calls, content=content)
    if reasoning:
        answer["reasoning_content"] = reasoning
    given = [USER, answer, *results]
    text = prompt(name, given, [WRITE, NOW], effort="low", add_generation_prompt=False)
    turn = text.split("<|im_start|>assistant\n")[1].split("<|im_end|>")[0]
    thinking = Thinking.OPEN if turn.startswith("<think>\n") else Thinking.NO
    told = Transcripts(profiles[name], [WRITE, NOW]).check(
        turn.removeprefix("<think>\n"), cuts=range(0, 400, 7), died_at=60, thinking=thinking
    )
    assert told.values() == (content, "" if name == CODER else reasoning, calls)


several = QwenXmlCalls().grammar([WRITE, NOW], several=True)
ENDS = ['"', "]", "}", "\n</parameter>\n", "</function>\n</tool_call>"]
HEAD = "<tool_call>\n<function=write_file>\n<parameter=path>\na\n</parameter>\n"
TAIL = "</function>\n</tool_call>"
A_CALL = f"<tool_call>\n<function=now>\n{TAIL}"


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (A_CALL, True),
        (f"{A_CALL}\n{A_CALL}", True),
        (A_CALL + A_CALL, False),
        (f"{A_CALL}\n", False),
        (f" {A_CALL}", False),
        (f"Sure.\n{A_CALL}", False),
        (HEAD + TAIL, True),
        (f"{HEAD}<parameter=text>\n</param\n\n</parameter>\n{TAIL}", True),
        (f"{HEAD}<parameter=mode>\n7\n</parameter>\n{TAIL}", True),
        (f"{HEAD}<parameter=mode>\nseven\n</parameter>\n{TAIL}", False),
        (f"{HEAD}<parameter=lines>\n[1, 2]\n</parameter>\n{TAIL}", True),
        (f"{HEAD}<parameter=lines>\n[a]\n</parameter>\n{TAIL}", False),
        (f"{HEAD}<parameter=text>\n</tool_call>\n</parameter>\n{TAIL}", False),
        (f"{HEAD}<parameter=text>\n</parameter>\n</parameter>\n{TAIL}", False),
        (f"{HEAD}<parameter=text>\na\n<parameter=mode>\n7\n</parameter>\n{TAIL}", False),
        (f"{HEAD}<parameter=other>\na\n</parameter>\n{TAIL}", False),
        (f"<tool_call>\n<function=write_file>\n{TAIL}", False),
        (f"<tool_call>\n<function=other>\n{TAIL}", False),
    ],
)
def test_the_grammar_allows_calls_and_nothing_else(text, fits):
    """What is allowed is read as calls; arguments are typed."""
    assert GrammarTexts(several).allow(text) is fits


@pytest.mark.parametrize("seed", range(40))
def test_what_the_grammar_allows_is_read_as_valid_calls(seed):
    """Whatever is written under it, the arguments fit the tool's schema."""
    text = GrammarTexts(several, ends=ENDS).random(seed)
    answers = Transcripts(profiles["qwen-3.5"], [WRITE, NOW])
    content, reasoning, calls = answers.read(text, thinking=Thinking.NO).values()
    assert (content, reasoning) == ("", "")
    assert calls
    for name, arguments in calls:
        jsonschema.validate(arguments, {"write_file": WRITE, "now": NOW}[name].arguments_schema())


def test_the_thought_comes_before_what_is_held_to_a_form():
    """Where the prompt has opened one, and where it has closed it."""
    fields = {"thinks": True, "schema": None, "tools": [NOW], "forced": True, "several": False}
    profile = profiles["qwen-3.5"]
    open_ = GrammarTexts(profile.grammar(thinking=Thinking.OPEN, **fields))
    assert open_.allow(f"a <tool_call> b\n</think>\n\n{A_CALL}")
    assert not open_.allow(A_CALL)
    closed = GrammarTexts(profile.grammar(thinking=Thinking.NO, **fields))
    assert closed.allow(A_CALL)
    assert not closed.allow(f"a</think>\n\n{A_CALL}")


def test_a_keyword_that_cannot_be_enforced_is_named():
    """The request is refused, before a model has to work."""
    tool = Tool("f", parameters={"properties": {"a": {"type": "string", "pattern": "^a"}}})
    with pytest.raises(GrammarError, match='"pattern"'):
        QwenXmlCalls().grammar([NOW, tool], several=False)
