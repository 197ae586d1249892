"""What templates of public models take, each shape in a template of our own.

The shapes were found in 369 public templates: those of ``ikawrakow/ik_llama.cpp`` at 8337e4c,
``huggingface/trl`` at f2cd577, ``chujiezheng/chat_templates`` at 11c4955, ``EricLBuehler/mistral.rs``
at 9e92262, ``xorbitsai/inference`` at 7ecec16 (``llm_family.json``), and of the jinja tests and the
Ollama map of ``huggingface/huggingface.js`` at fe42e68. A model that has it is named beside each.
"""

import json
from pathlib import Path

import pytest

from gpu_worker.dialect import families
from gpu_worker.dialect.chat_template import ChatTemplate, TemplateError
from gpu_worker.dialect.messages import within
from gpu_worker.dialect.template_traits import Calls, Systems, Traits, traits

TEMPLATES = Path(__file__).parents[3] / "templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

TURN = "<{{ m.role }}>{{ m.content }}"
LOOP = "{% for m in messages %}" + TURN + "{% endfor %}"
CALL = "{{ c.function.name }}({{ c.function.arguments | tojson }})"
ALL_CALLS = "{% for c in m.tool_calls %}" + CALL + "{% endfor %}"
END = "{% endfor %}"
FIRST_SYSTEM = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set messages = messages[1:] %}{% endif %}{{ system }}"
)
REFUSED = "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
ALTERNATING = (
    "{% set ns = namespace(last='') %}{% for m in messages %}"
    "{% if m.role in ('user', 'assistant') and m.tool_calls is not defined %}"
    "{% if m.role == ns.last %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.last = m.role %}{% endif %}"
)
SHAPES = {
    "all as it comes: Qwen 2.5": (
        f"{LOOP[: -len('{% endfor %}')]}{ALL_CALLS}{{% endfor %}}",
        Traits(),
    ),
    "one system message, first: Qwen 3.5": (
        FIRST_SYSTEM + LOOP.replace(TURN, REFUSED + TURN + ALL_CALLS),
        Traits(systems=Systems.FIRST),
    ),
    "the last of the system messages: DeepSeek R1's distillations": (
        "{% set ns = namespace(s='') %}{% for m in messages if m.role == 'system' %}"
        "{% set ns.s = m.content %}{% endfor %}{{ ns.s }}"
        + LOOP.replace(TURN, "{% if m.role != 'system' %}" + TURN + ALL_CALLS + "{% endif %}"),
        Traits(systems=Systems.FIRST),
    ),
    "what stands first, then only what is no system message second: Hammer": (
        FIRST_SYSTEM
        + "{% if messages[0].role == 'system' %}{% set messages = messages[1:] %}{% endif %}"
        + LOOP.replace(TURN, TURN + ALL_CALLS),
        Traits(systems=Systems.FIRST),
    ),
    "a system message with a user's first: DBRX": (
        "{% if messages[0].role == 'system' and not messages[1:] %}"
        "{{ raise_exception('no user') }}{% endif %}" + LOOP.replace(TURN, TURN + ALL_CALLS),
        Traits(systems=Systems.FIRST),
    ),
    "no system message: Gemma 2": (
        LOOP.replace(TURN, REFUSED + TURN + ALL_CALLS),
        Traits(systems=Systems.NOWHERE),
    ),
    "it passes over system messages: Mistral 7B": (
        LOOP.replace(TURN, "{% if m.role != 'system' %}" + TURN + ALL_CALLS + "{% endif %}"),
        Traits(systems=Systems.NOWHERE),
    ),
    "arguments pasted as text: DeepSeek V3": (
        LOOP.replace(
            TURN,
            TURN + "{% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %}",
        ),
        Traits(arguments_are_text=True),
    ),
    "text joined with text: DeepSeek R1": (
        LOOP.replace(
            TURN,
            TURN + "{% for c in m.tool_calls %}{{ '(' + c.function.arguments + ')' }}{% endfor %}",
        ),
        Traits(arguments_are_text=True),
    ),
    "arguments looked through: Gemma 4": (
        LOOP.replace(
            TURN,
            TURN + "{% for c in m.tool_calls %}{% for k, v in c.function.arguments | items %}"
            "{{ k }}={{ v }}{% endfor %}{% endfor %}",
        ),
        Traits(),
    ),
    "one call a message or a refusal, and nothing said beside it: Llama 3": (
        LOOP.replace(
            TURN,
            "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}"
            "{{ raise_exception('one call at a time') }}{% endif %}{% set c = m.tool_calls[0] %}"
            f"{CALL}{{% else %}}{TURN}{{% endif %}}",
        ),
        Traits(calls=Calls.ALONE, calls_have_content=False),
    ),
    "the first of the calls: GigaChat": (
        LOOP.replace(
            TURN, f"{TURN}{{% if m.tool_calls %}}{{% set c = m.tool_calls[0] %}}{CALL}{{% endif %}}"
        ),
        Traits(calls=Calls.ALONE),
    ),
    "calls or content: Hermes 2 Pro": (
        LOOP.replace(TURN, f"{{% if m.tool_calls %}}{ALL_CALLS}{{% else %}}{TURN}{{% endif %}}"),
        Traits(calls_have_content=False),
    ),
    "no calls: SmolLM3": (LOOP, Traits(calls=Calls.NOWHERE)),
    "turns that alternate: Gemma 3": (
        ALTERNATING + TURN + ALL_CALLS + "{% endfor %}",
        Traits(turns_alternate=True),
    ),
    "calls or content in turns that alternate: Mistral Nemo": (
        ALTERNATING + f"{{% if m.tool_calls %}}{ALL_CALLS}{{% else %}}{TURN}{{% endif %}}{END}",
        Traits(turns_alternate=True, calls_have_content=False),
    ),
    "contents with images, texts left out: Idefics 3": (
        LOOP.replace(
            "{{ m.content }}",
            "{% for part in m.content %}{{ part.text if part.type == 'text' }}{% endfor %}",
        ).replace("{% endfor %}{% endfor %}", "{% endfor %}" + ALL_CALLS + "{% endfor %}"),
        Traits(contents_are_parts=True),
    ),
    "contents with images, texts refused: LLaVA": (
        LOOP.replace("{{ m.content }}", "{{ m.content[0].text.strip() }}" + ALL_CALLS),
        Traits(contents_are_parts=True),
    ),
    "names of functions with results: Hermes 2 Pro's schema template": (
        LOOP.replace(
            TURN,
            "{% if m.role == 'tool' and not m.name %}{{ raise_exception('no name') }}{% endif %}"
            + TURN
            + ALL_CALLS,
        ),
        Traits(),
    ),
    "only what we cannot give it: firefunction": ("{{ functions + '.' }}", Traits()),
}
shapes = pytest.mark.parametrize(("source", "found"), SHAPES.values(), ids=SHAPES)


@shapes
def test_a_template_tells_what_it_takes(source, found):
    """By what it writes of small conversations, and what it refuses."""
    assert traits(ChatTemplate(source)) == found


def called(content, *functions):
    """Return a message of the assistant's that calls functions."""
    calls = [
        {"id": f"call_{name}", "function": {"name": name, "arguments": arguments}}
        for name, arguments in functions
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(name, content):
    """Return what a function has brought."""
    return {"role": "tool", "content": content, "tool_call_id": f"call_{name}"}


SYSTEM, LATER = ({"role": "system", "content": text} for text in ("sys-1", "sys-2"))
USER, MORE = ({"role": "user", "content": text} for text in ("user-1", "user-2"))
ANSWER = {"role": "assistant", "content": "answer-1"}
TWO = called("said-1", ("one", {"a": "arg-1"}), ("two", {"a": "arg-2"}))
RESULTS = [result("one", "result-1"), result("two", "result-2")]
CONVERSATIONS = {
    "plain": [USER, ANSWER, MORE],
    "system": [SYSTEM, USER, ANSWER, MORE],
    "two systems": [SYSTEM, LATER, USER],
    "a later system": [USER, ANSWER, LATER, MORE],
    "systems": [SYSTEM, USER, ANSWER, LATER, MORE],
    "system last": [USER, SYSTEM],
    "system alone": [SYSTEM],
    "users": [USER, MORE],
    "assistants": [USER, ANSWER, {"role": "assistant", "content": "answer-2"}, MORE],
    "calls": [USER, TWO, *RESULTS],
    "calls answered": [USER, TWO, *RESULTS, ANSWER, MORE],
    "calls in turn": [
        USER,
        called("said-1", ("one", {"a": "arg-1"})),
        result("one", "result-1"),
        called("said-2", ("two", {"a": "arg-2"})),
        result("two", "result-2"),
        ANSWER,
        MORE,
    ],
}
REFUSES_ALL = "only what we cannot give it: firefunction"
WRITES_NO_CALLS = "no calls: SmolLM3"
# What has no calls in it, where a family has to write calls in words of its own.
WITHOUT_CALLS = [name for name in CONVERSATIONS if not name.startswith("calls")]


@pytest.mark.parametrize(
    ("shape", "conversation"),
    [
        (shape, conversation)
        for shape in SHAPES
        if shape != REFUSES_ALL
        for conversation in (WITHOUT_CALLS if shape == WRITES_NO_CALLS else CONVERSATIONS)
    ],
)
def test_nothing_of_a_conversation_is_lost(shape, conversation):
    """Whatever a template takes, all that anybody said comes to stand in the prompt, once."""
    source, found = SHAPES[shape]
    messages = CONVERSATIONS[conversation]
    text = ChatTemplate(source).render(within(found, messages))
    said = json.dumps(messages)
    for word in ("sys", "user", "answer", "said", "arg", "result"):
        for number in (1, 2):
            assert text.count(f"{word}-{number}") == said.count(f"{word}-{number}")


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.name)
def test_real_templates_take_what_they_are_given(path):
    """None of the templates that tests of families render loses a conversation without calls."""
    template = ChatTemplate(path.read_text(), variables=TOKENS)
    profile = families.find(template)
    for conversation in WITHOUT_CALLS:
        messages, variables = profile.template_input(CONVERSATIONS[conversation], [], None)
        text = template.render(messages, **variables)
        for said in CONVERSATIONS[conversation]:
            assert said["content"] in text


def test_what_a_template_refuses_is_told_in_its_words():
    """What no form of a conversation can help, the template's own message says."""
    template = ChatTemplate(SHAPES["turns that alternate: Gemma 3"][0])
    messages = within(traits(template), [USER, TWO, *RESULTS, MORE])
    with pytest.raises(TemplateError, match="refuses: roles must alternate"):
        template.render(messages)
