"""Prompts: the template as its model expects it, and special tokens in user text as text."""

import itertools
from datetime import datetime
from pathlib import Path

import jinja2.sandbox
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gpu_worker.dialect import chat_template
from gpu_worker.dialect.chat_template import (
    ChatTemplate,
    Composed,
    Ours,
    PromptEncoder,
    TemplateError,
    Verbatim,
)
from gpu_worker.dialect.tokenizer import JsonTokenizer

TINY = Path(__file__).parents[3] / "models" / "tiny"
IM_START, IM_END = 1, 2


tokenizer = JsonTokenizer.from_file(TINY / "tokenizer.json")
reference = Tokenizer.from_file(str(TINY / "tokenizer.json"))
source = (TINY / "chat_template.jinja").read_text()
encoder = PromptEncoder(ChatTemplate(source), tokenizer)


def encode(messages, encoder=encoder):
    """Render and encode as the worker does."""
    return encoder.token_ids(encoder.render(messages))


def turns(*contents):
    """Return a conversation of user and assistant in turn."""
    roles = itertools.cycle(["user", "assistant"])
    return [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]


def reference_ids(messages):
    """Render and encode in one go, as transformers does."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(source).render(messages=messages, add_generation_prompt=True)
    return reference.encode(text, add_special_tokens=False).ids


@given(contents=st.lists(st.text(max_size=30), min_size=1, max_size=4))
def test_plain_texts_encode_as_the_whole_rendering(contents):
    """Without special tokens in it a conversation has the ids of its rendering as one text."""
    assert reference_ids(turns(*contents)) == encode(turns(*contents))


tricky = st.lists(
    st.sampled_from(
        ["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<", "|>", " a", "\ufdd0", "\n", "<|"]
    ),
    max_size=8,
).map("".join)


@given(contents=st.lists(tricky, min_size=1, max_size=4))
def test_special_tokens_in_content_stay_text(contents):
    """Only the template's own turn markers become special tokens, and the text is kept."""
    ids = encode(turns(*contents))
    assert len(contents) + 1 == ids.count(IM_START)
    assert len(contents) == ids.count(IM_END)
    rendered = ChatTemplate(source).render(turns(*contents))
    assert rendered == reference.decode(ids, skip_special_tokens=False)


def test_user_text_cannot_end_its_turn():
    """A user who writes <|im_end|> gets its characters' tokens, in their usual form."""
    ids = encode(turns("a<|im_end|>b"))
    as_text = tokenizer.encode("user\na<|im_end|>b", special=False)
    assert [IM_START, *as_text, IM_END] == ids[: len(as_text) + 2]


def test_a_token_cut_over_two_contents_stays_text():
    """Contents that a template joins without a border cannot form a special token."""
    joined = "{% for m in messages %}{{ m.content }}{% endfor %}"
    ids = encode(turns("x<|im_", "end|>y"), PromptEncoder(ChatTemplate(joined), tokenizer))
    assert tokenizer.encode("x<|im_end|>y", special=False) == ids


def test_special_tokens_are_meant_in_the_parts_of_a_text_that_are_ours():
    """What people wrote beside them stays text, also where the two join."""
    joined = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    said = Composed("<|im_end|><|im_", Ours("start|> <|im_end|>"), "<|im_start|>")
    ids = encode(turns(said), PromptEncoder(joined, tokenizer))
    assert [at for at, token in enumerate(ids) if token in {IM_START, IM_END}] == [
        len(tokenizer.encode("<|im_end|><|im_start|> ", special=False))
    ]
    assert reference.decode(ids, skip_special_tokens=False) == said


def test_template_may_trim_content_that_holds_special_tokens():
    """What a template does with the text works also where special tokens had to be guarded."""
    trimming = "{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}"
    ids = encode(turns("  <|im_end|> \n"), PromptEncoder(ChatTemplate(trimming), tokenizer))
    assert [IM_START, *tokenizer.encode("<|im_end|>", special=False), IM_END] == ids


def test_template_gets_what_public_templates_use():
    """Blocks are trimmed; tojson is not for HTML; dates, loop controls and generation marks work."""
    template = ChatTemplate(
        "{{ bos_token }}\n"
        "  {% for m in messages %}\n"
        "{% if loop.index0 == 1 %}{% break %}{% endif %}\n"
        "{% generation %}{{ m | tojson }}{% endgeneration %}\n"
        "  {% endfor %}\n"
        "{{ strftime_now('%Y') }}",
        variables={"bos_token": "<s>"},
        now=lambda: datetime(2031, 5, 1),  # noqa: DTZ001 - templates show local time
    )
    text = template.render([{"role": "user", "content": "<é'>"}, {"role": "user", "content": "x"}])
    assert text == '<s>\n{"role": "user", "content": "<é\'>"}2031'


def test_nothing_is_escaped_beside_what_a_template_calls_safe():
    """A prompt is no HTML, so that quotes stay quotes (templates of mistral-common do this)."""
    template = ChatTemplate("{{ '{\"a\": ' + messages | tojson | safe + '}' }}")
    assert template.render([{"b": "<"}]) == '{"a": [{"b": "<"}]}'


def test_a_verbatim_text_is_not_made_json():
    """It is written as it is, and special tokens in it stay text all the same."""
    template = ChatTemplate("{{ messages[0].content | tojson }}")
    said = [{"role": "user", "content": Verbatim('"a"\n<|im_end|>')}]
    assert template.render(said) == '"a"\n<|im_end|>'
    assert encode(said, PromptEncoder(template, tokenizer)) == tokenizer.encode(
        '"a"\n<|im_end|>', special=False
    )


def test_a_template_that_raises_says_why():
    """The message of raise_exception reaches the caller."""
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TemplateError, match="roles must alternate"):
        template.render(turns("a"))


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ messages.__class__.mro() }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
    ],
)
def test_a_template_that_fails_or_misbehaves_is_refused(source):
    """Errors inside a template, and what the sandbox forbids, are refusals as well."""
    with pytest.raises(TemplateError):
        ChatTemplate(source).render(turns("a"))


def test_rendering_is_bounded_in_size_and_time(monkeypatch):
    """A template that writes or takes too much is stopped."""
    endless = "{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}"
    ticks = itertools.count()
    with pytest.raises(TemplateError, match="too much"):
        ChatTemplate(endless, clock=lambda: float(next(ticks))).render(turns("a"))
    monkeypatch.setattr(chat_template, "RENDER_LIMIT_CHARACTERS", 100)
    with pytest.raises(TemplateError, match="too much"):
        ChatTemplate(endless).render(turns("a"))


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{% break %}",
        "{% if 1 %}" * 200 + "{% endif %}" * 200,
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    ],
    ids=["syntax", "break", "nested", "brackets"],
)
def test_a_broken_template_is_named_at_load(source):
    """A template that does not compile fails when it is made, not at the first request."""
    with pytest.raises(TemplateError, match="broken"):
        ChatTemplate(source)


def test_special_tokens_stay_text_in_every_value_that_a_template_gets():
    """Tools, arguments and variables are people's text as well, names of keys included."""
    dump = ChatTemplate("{{ messages | tojson }}{{ tools | tojson }}<|im_end|>")
    nested = {"<|im_end|>": ["<|im_start|>", {"a": "<|im_end|>", "b": 1, "c": None}]}
    rendering = PromptEncoder(dump, tokenizer)
    rendered = rendering.render([{"role": "user", "arguments": nested}], tools=[nested])
    ids = rendering.token_ids(rendered)
    assert (ids.count(IM_START), ids.count(IM_END), ids[-1]) == (0, 1, IM_END)
    assert dump.render([{"role": "user", "arguments": nested}], tools=[nested]) == (
        reference.decode(ids, skip_special_tokens=False)
    )


def test_a_template_tells_what_it_reads():
    """Its free variables, and not those that it sets itself."""
    assert {"tools", "messages"} <= ChatTemplate(source).reads
    assert ChatTemplate("{% set tools = 1 %}{{ tools }}{{ x }}").reads == {"x"}


@pytest.mark.parametrize(
    "name", ["self", "messages", "context", "values", "loop", "caller", "args"]
)
def test_variables_collide_with_nothing(name):
    """A template sees a variable of any name, except that the messages are the messages."""
    template = ChatTemplate("{{ messages[0].content }} {{ %s }}" % name)  # noqa: UP031 - braces
    encoder = PromptEncoder(template, tokenizer)
    text = encoder.render(turns("a"), **{name: "b"}).text
    assert text.startswith("a ")
    assert name in ("self", "messages") or text == "a b"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% set c = b %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% for a in range(9) %}{{ m(n) }}{% endfor %}{% endmacro %}{% set x = m(1) %}",
        "{% set x = 'a' * 200000000 %}",
        "{% set x = 9 ** 99999999 %}",
        "{{ (10 ** 10000) | string }}",
    ],
)
def test_a_template_that_works_in_silence_is_stopped(source, monkeypatch):
    """Without a word it cannot take time or memory without end."""
    monkeypatch.setattr(chat_template, "RENDER_LIMIT_S", 0.1)
    with pytest.raises(TemplateError, match=r"too much|cannot render"):
        ChatTemplate(source).render([])


def test_what_templates_compute_is_computed():
    """Products of numbers and short texts, and loops of any kind, are as in any Jinja."""
    source = "{{ 2 * 3 }}{{ 'ab' * 2 }}{{ 2 ** 3 }}{% for a in [1, 2] %}{{ loop.index * 0.5 }}{% endfor %}"
    assert ChatTemplate(source).render([]) == "6abab80.51.0"
    assert "check" not in ChatTemplate(source).reads
