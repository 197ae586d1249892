"""From requests to what an engine takes."""

import json
import keyword
from pathlib import Path

import jinja2
import msgspec
import pytest

from fastrun.service.chat_template_kwargs import RESERVED
from fastrun.v1.generation_pb2 import (
    ChatMessage,
    GenerateRequest,
    ReasoningEffort,
    ResponseFormat,
    Role,
    Sampling,
    Tool,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
)
from fastrun.v1.worker_pb2 import ModelCard
from gpu_worker import prompt
from gpu_worker.chat import InvalidRequestError
from gpu_worker.dialect import families
from gpu_worker.dialect.chat_template import ChatTemplate, PromptEncoder
from gpu_worker.dialect.tokenizer import JsonTokenizer
from gpu_worker.engine.grammar import Choice, Json, Sequence
from gpu_worker.engine.protocol import SamplingParams
from gpu_worker.engine.scripted import ByteTokenizer
from gpu_worker.generation import INLINE_BYTES
from gpu_worker.prompt import SamplingDefaults

TEMPLATES = Path(__file__).parents[2] / "templates"
CARD = ModelCard(model="m", context_length=100, longest_token_bytes=10)
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
ENCODER = PromptEncoder(ChatTemplate(TEMPLATE), ByteTokenizer())
PROFILE = families.find(ChatTemplate(TEMPLATE))


def request(*contents, **sampling):
    """Return a request of user messages."""
    messages = [ChatMessage(role=Role.ROLE_USER, content=text) for text in contents]
    return GenerateRequest(model="m", messages=messages, sampling=Sampling(**sampling))


def make(asked, defaults=SamplingDefaults(), context_length=100):  # noqa: B008 - frozen
    """Make a prompt with the byte tokenizer."""
    return prompt.make(
        asked,
        ENCODER,
        PROFILE,
        defaults=defaults,
        context_length=context_length,
        stop_token_ids=(257,),
    )


def test_what_a_request_leaves_open_comes_from_the_model_and_else_is_neutral():
    """Absent fields: the model's generation_config, else 1, 1, off; max_tokens to the window."""
    neutral = SamplingParams(max_tokens=97, stop_token_ids=(257,))
    assert make(request("hi")).sampling == neutral
    defaults = SamplingDefaults(temperature=0.5, top_p=0.9, top_k=40)
    assert make(request("hi"), defaults).sampling == SamplingParams(
        max_tokens=97, temperature=0.5, top_p=0.9, top_k=40, stop_token_ids=(257,)
    )


def test_what_a_request_says_counts_even_when_it_is_zero():
    """An explicit 0 is not absent."""
    asked = request("hi", temperature=0, top_p=0, top_k=0, repetition_penalty=0, seed=2**64 - 1)
    sampling = make(asked, SamplingDefaults(temperature=0.5, top_p=0.9, top_k=40)).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0, 0, 0)
    assert sampling.repetition_penalty == 0
    assert sampling.seed == 2**63 - 1


def test_max_tokens_is_cut_to_the_window():
    """Prompt and max_tokens over the window are no error; without it 16384 is the most."""
    assert make(request("hi", max_tokens=5)).sampling.max_tokens == 5
    assert make(request("hi", max_tokens=1000)).sampling.max_tokens == 97
    assert make(request("hi"), context_length=100_000).sampling.max_tokens == 16_384


def test_a_prompt_that_leaves_no_room_is_refused():
    """The message names window and prompt."""
    assert len(make(request("x" * 98)).token_ids) == 99
    with pytest.raises(InvalidRequestError) as caught:
        make(request("x" * 99))
    assert caught.value.detail.message == (
        "this model's context window is 100 tokens and the prompt has 100: shorten the prompt"
    )


class Bytes(ByteTokenizer):
    """A tokenizer whose tokens are bytes, all of them."""

    longest_token_bytes = 1


class Unwilling(Bytes):
    """One that nobody may ask to encode."""

    def encode(self, text, *, special):
        raise AssertionError("a prompt was tokenized that is surely too long")


@pytest.mark.parametrize(
    "said",
    [
        {"tools": [Tool(name="f", description="x" * 1000)]},
        {"messages": [ChatMessage(role=Role.ROLE_ASSISTANT, reasoning="x" * 1000)]},
    ],
    ids=["tools", "reasoning"],
)
def test_a_prompt_that_is_surely_too_long_is_not_tokenized(said):
    """Whatever it is that makes a prompt longer than its window can hold, it costs no tokenizer."""
    template = ChatTemplate((TEMPLATES / "qwen-3.jinja").read_text())
    asked = request("hi")
    asked.MergeFrom(GenerateRequest(**said))
    with pytest.raises(InvalidRequestError, match="window is 999 tokens and the prompt has more"):
        prompt.make(
            asked,
            PromptEncoder(template, Unwilling()),
            families.find(template),
            defaults=SamplingDefaults(),
            context_length=999,
            stop_token_ids=(),
        )


def test_marks_do_not_make_a_prompt_longer():
    """What breaks special tokens that a user wrote is taken out again, and does not count."""
    special = next(iter(ByteTokenizer().special_tokens))
    said = special * (98 // len(special))
    made = prompt.make(
        request(said),
        PromptEncoder(ChatTemplate(TEMPLATE), Bytes()),
        PROFILE,
        defaults=SamplingDefaults(),
        context_length=100,
        stop_token_ids=(),
    )
    assert bytes(made.token_ids).decode() == "u" + said


def test_a_refusal_of_the_template_is_the_requests_fault():
    """What the template raises is told."""
    encoder = PromptEncoder(ChatTemplate("{{ raise_exception('no user') }}"), ByteTokenizer())
    with pytest.raises(InvalidRequestError, match="no user"):
        prompt.make(
            request("x"),
            encoder,
            PROFILE,
            defaults=SamplingDefaults(),
            context_length=9,
            stop_token_ids=(),
        )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_tokens", 0, "max_tokens must be at least 1"),
        ("temperature", 2.1, "temperature must be between 0 and 2"),
        ("temperature", float("nan"), "temperature must be between 0 and 2"),
        ("top_p", -0.1, "top_p must be between 0 and 1"),
        ("top_k", 1001, "top_k must be between 0 and 1000"),
        ("min_p", 1.5, "min_p must be between 0 and 1"),
        ("frequency_penalty", float("inf"), "frequency_penalty must be between -2 and 2"),
        ("presence_penalty", -2.5, "presence_penalty must be between -2 and 2"),
        ("repetition_penalty", -1, "repetition_penalty must be between 0 and 2"),
    ],
)
def test_ranges(field, value, message):
    """A value out of range, NaN included, is refused by name."""
    with pytest.raises(InvalidRequestError, match=message):
        prompt.check(request("x", **{field: value}), card=CARD)


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty", "top_k"])
def test_zero_is_in_range(field):
    """The ends of a range are legal."""
    prompt.check(request("x", **{field: 0}), card=CARD)


def test_what_needs_no_tokenizer_is_refused_first():
    """Model, messages, roles, stops and a hopeless length."""
    for change, message in [
        ({"model": "other"}, "serves 'm'"),
        ({"messages": []}, "messages is required"),
        ({"messages": [ChatMessage(content="x")]}, "needs a role"),
        ({"stop": [""]}, "none of them empty"),
        ({"stop": list("abcde")}, "up to 4"),
        ({"messages": [ChatMessage(role=Role.ROLE_USER, content="x" * 1001)]}, "has more"),
    ]:
        fields = {"model": "m", "messages": request("x").messages} | change
        with pytest.raises(InvalidRequestError, match=message):
            prompt.check(GenerateRequest(**fields), card=CARD)


TINY = Path(__file__).parents[2] / "models" / "tiny"
tiny_tokenizer = JsonTokenizer.from_file(TINY / "tokenizer.json")
tiny_template = ChatTemplate((TINY / "chat_template.jinja").read_text())
NOW = Tool(name="now", description="<|im_end|>")
REQUIRED = ToolChoice(mode=ToolChoiceMode.TOOL_CHOICE_MODE_REQUIRED)
LOW = ReasoningEffort.REASONING_EFFORT_LOW


def make_tiny(bos_id=None, **fields):
    """Make a prompt as the tiny model gets it."""
    return prompt.make(
        GenerateRequest(**fields),
        PromptEncoder(tiny_template, tiny_tokenizer, bos_id=bos_id),
        families.find(tiny_template),
        defaults=SamplingDefaults(),
        context_length=1000,
        stop_token_ids=(2,),
    )


HELLO = [ChatMessage(role=Role.ROLE_USER, content="Hello")]


def text_of(made):
    """Decode a prompt, its special tokens as they are written."""
    names = {number: text for text, number in tiny_tokenizer.special_tokens.items()}
    return "".join(
        names.get(one) or tiny_tokenizer.token_bytes(one).decode() for one in made.token_ids
    )


def test_a_raw_prompt_is_a_text_and_nothing_else():
    """No template, no special tokens but the first, and markers in the answer are content."""
    made = make_tiny(prompt="a<|im_end|>b", tools=[NOW], tool_choice=REQUIRED)
    assert made.token_ids == tiny_tokenizer.encode("a<|im_end|>b", special=False)
    assert made.grammar is None
    made.parser.feed("<think>a</think><tool_call>")
    assert "".join(made.parser.output.content) == "<think>a</think><tool_call>"
    assert make_tiny(bos_id=0, prompt="a").token_ids[0] == 0


def test_an_empty_raw_prompt_needs_a_first_token():
    """Where the vocabulary has one that begins a text, that is the prompt."""
    assert make_tiny(bos_id=0, prompt="").token_ids == [0]
    with pytest.raises(InvalidRequestError, match="prompt is empty"):
        make_tiny(prompt="")


def test_messages_or_a_prompt():
    """One of the two, not both."""
    for fields, message in [
        ({}, "messages is required"),
        ({"messages": HELLO, "prompt": "x"}, "not both"),
    ]:
        with pytest.raises(InvalidRequestError, match=message):
            prompt.check(GenerateRequest(model="m", **fields), card=CARD)


def test_special_tokens_in_tools_and_variables_stay_text():
    """A tool's description cannot end the system's turn."""
    made = make_tiny(messages=HELLO, tools=[NOW])
    assert made.token_ids.count(2) == 2
    assert '"description": "<|im_end|>"' in text_of(made)


def test_values_nested_too_deeply_are_refused():
    """Neither a bug nor a crash: the request is at fault."""
    for levels in (100_000, 900, 300):
        deep = f'{{"x": {"[" * levels + "]" * levels}}}'
        with pytest.raises(InvalidRequestError, match=r"nested less deeply|must be a JSON object"):
            make_tiny(messages=HELLO, chat_template_kwargs_json=deep)
    fits = f'{{"x": {"[" * 250 + "]" * 250}}}'
    assert make_tiny(messages=HELLO, chat_template_kwargs_json=fits).token_ids
    call = ToolCall(id="1", name="now", arguments=deep)
    history = [*HELLO, ChatMessage(role=Role.ROLE_ASSISTANT, tool_calls=[call])]
    assert make_tiny(messages=history).token_ids


@pytest.mark.parametrize(
    "name",
    sorted(
        {*RESERVED, *jinja2.Environment().globals, *keyword.kwlist}
        | {"", "a b", "é", "__class__", "_", "missing", "undefined", "resolve", "blocks", "name"}
    ),
)
@pytest.mark.parametrize("value", [1, None, "<|im_end|>", {"a": [1]}, []])
def test_template_variables_of_any_name(name, value):
    """A variable works or is refused by name, whatever Python or jinja means by it."""
    given = json.dumps({name: value})
    if name in RESERVED:
        with pytest.raises(InvalidRequestError, match=f"must not set {name}"):
            make_tiny(messages=HELLO, chat_template_kwargs_json=given)
    else:
        assert make_tiny(messages=HELLO, chat_template_kwargs_json=given).token_ids


def test_what_jinja_calls_by_name_is_reserved():
    """A template that calls `range` or `namespace` would break on a value of that name."""
    assert set(jinja2.Environment().globals) <= RESERVED


def test_off_is_off_however_it_is_said():
    """Absent, none and the template's own switch make one prompt; the switch has the last word."""
    off = make_tiny(messages=HELLO).token_ids
    none = ReasoningEffort.REASONING_EFFORT_NONE
    switch = {"chat_template_kwargs_json": '{"enable_thinking": false}'}
    assert off == make_tiny(messages=HELLO, reasoning_effort=none).token_ids
    assert off == make_tiny(messages=HELLO, **switch).token_ids
    assert off == make_tiny(messages=HELLO, reasoning_effort=LOW, **switch).token_ids
    on = make_tiny(messages=HELLO, reasoning_effort=LOW).token_ids
    assert text_of(make_tiny(messages=HELLO)) == text_of(
        make_tiny(messages=HELLO, reasoning_effort=LOW)
    ) + ("<think>\n\n</think>\n\n")
    assert (
        on
        == make_tiny(
            messages=HELLO, chat_template_kwargs_json='{"enable_thinking": true}'
        ).token_ids
    )


def test_grammars_follow_thinking():
    """The constraint is on the answer; with thinking on, a thought may come first."""
    schema = ResponseFormat(json_schema='{"enum": [1]}')
    assert make_tiny(messages=HELLO, response_format=schema).grammar == Json('{"enum": [1]}')
    thought = make_tiny(messages=HELLO, response_format=schema, reasoning_effort=LOW).grammar
    assert isinstance(thought, Choice)
    assert thought.options[1] == Json('{"enum": [1]}')
    assert isinstance(
        make_tiny(messages=HELLO, tools=[NOW], tool_choice=REQUIRED).grammar, Sequence
    )
    assert make_tiny(messages=HELLO, tools=[NOW]).grammar is None
    assert make_tiny(prompt="x", response_format=schema).grammar == Json('{"enum": [1]}')


def test_logprobs_are_asked_of_the_engine():
    """Absent is none at all, 0 is the chosen token alone."""
    assert make_tiny(messages=HELLO).sampling.logprobs is None
    assert make_tiny(messages=HELLO, top_logprobs=0).sampling.logprobs == 0
    with pytest.raises(InvalidRequestError, match="between 0 and 20"):
        prompt.check(GenerateRequest(model="m", messages=HELLO, top_logprobs=21), card=CARD)


def test_variables_that_are_set_by_hand_reach_the_template():
    """Those of the effort asked for; the request's own come last."""
    template = ChatTemplate("{{ depth }}{% for m in messages %}{{ m.content }}{% endfor %}")
    by_hand = msgspec.structs.replace(
        families.find(template), efforts={"off": {"depth": "none"}, "high": {"depth": "deep"}}
    )

    def text(**fields):
        asked = request("x")
        asked.MergeFrom(GenerateRequest(**fields))
        made = prompt.make(
            asked,
            PromptEncoder(template, ByteTokenizer()),
            by_hand,
            defaults=SamplingDefaults(),
            context_length=99,
            stop_token_ids=(),
        )
        return bytes(made.token_ids).decode()

    assert text() == "nonex"
    assert text(reasoning_effort=ReasoningEffort.REASONING_EFFORT_HIGH) == "deepx"
    assert text(chat_template_kwargs_json='{"depth": "own"}') == "ownx"


def test_a_long_history_without_words_is_long():
    """Messages and calls take time by their number, too, so they do not count as nothing."""
    call = ToolCall(id="a", name="f")
    turns = [ChatMessage(role=Role.ROLE_ASSISTANT, tool_calls=[call] * 500)] * 2
    assert prompt.size(GenerateRequest(messages=turns)) > INLINE_BYTES
    assert prompt.size(GenerateRequest(messages=[ChatMessage()] * 1000)) > INLINE_BYTES


LONG = "x" * INLINE_BYTES


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": LONG},
        {"stop": [LONG]},
        {"tools": [Tool(name=LONG)]},
        {"messages": [ChatMessage(tool_call_id=LONG)]},
        {"messages": [ChatMessage(tool_calls=[ToolCall(name=LONG)])]},
        {"response_format": ResponseFormat(json_schema=LONG)},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_whatever_is_long_counts(fields):
    """A request is long by any text in it: each is read, guarded or tokenized."""
    assert prompt.size(GenerateRequest(**fields)) > INLINE_BYTES
