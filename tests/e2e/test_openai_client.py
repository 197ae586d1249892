"""What the official client gets from a whole stack with a real model."""

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

PROMPTS = (
    "Hello",
    "What is 7 + 12?",
    "Say hello in Japanese.",
    "Show me an animal.",
    "Tell me a story about Alice and a boat.",
)


@pytest.fixture
def client(stack):
    with stack.client() as client:
        yield client


@pytest.fixture
def ask(stack, client):
    """Ask one thing, with temperature 0."""

    def ask(prompt, **options):
        return client.chat.completions.create(
            model=stack.ready["model"],
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            **{"max_tokens": 128, **options},
        )

    return ask


def streamed(chunks):
    """Return the text, the finish reason and the usage of a stream."""
    text, reason, usage = "", None, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return text, reason, usage


def test_plain(ask):
    """A plain answer holds the model's words, why they end, and what they cost."""
    answer = ask("Hello")
    choice = answer.choices[0]

    assert choice.message.content == "Hello! How can I help you today?"
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens < 64
    assert answer.object == "chat.completion"


@pytest.mark.parametrize("prompt", PROMPTS)
def test_streamed_equals_plain(ask, prompt):
    """At temperature 0 a streamed answer is the plain one, also with characters of many bytes."""
    plain = ask(prompt)
    text, reason, usage = streamed(ask(prompt, stream=True, stream_options={"include_usage": True}))

    assert text == plain.choices[0].message.content
    assert reason == plain.choices[0].finish_reason
    assert usage.prompt_tokens == plain.usage.prompt_tokens
    assert usage.completion_tokens == plain.usage.completion_tokens


def test_length(ask):
    """An answer that is cut off says so, and has as many tokens as were allowed."""
    answer = ask("Count from 17 to 40.", max_tokens=20)

    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 20


def test_stop(ask):
    """An answer ends before a stop text."""
    answer = ask("Count from 17 to 40.", stop=[" 25"])

    assert answer.choices[0].message.content.endswith(" 24")
    assert answer.choices[0].finish_reason == "stop"


def test_sixteen_at_once(stack, ask):
    """More requests than slots are all answered, each as if it were alone; then all slots are free."""
    alone = {prompt: ask(prompt).choices[0].message.content for prompt in PROMPTS}
    prompts = [PROMPTS[number % len(PROMPTS)] for number in range(16)]

    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda each: streamed(ask(each, stream=True))[0], prompts))

    assert texts == [alone[prompt] for prompt in prompts]
    fleet = stack.fleet()
    assert [worker.slots for worker in fleet.workers] == [4]
    assert fleet.drift == 0


def test_cached_tokens(ask):
    """The same long beginning again comes from the cache, and the usage says how much of it."""
    beginning = "Repeat after me: " + "zuvi marota fen " * 60
    first = ask(beginning + "one", max_tokens=4).usage
    second = ask(beginning + "two", max_tokens=4).usage

    assert second.prompt_tokens == first.prompt_tokens
    assert second.prompt_tokens_details.cached_tokens > 100


def test_models(stack, client):
    """The list of models names the one that is served."""
    assert [model.id for model in client.models.list().data] == [stack.ready["model"]] == ["tiny"]


def test_wrong_key(stack):
    """A wrong key is an authentication error."""
    refused = pytest.raises(openai.AuthenticationError, match="invalid or missing API key")
    with stack.client().with_options(api_key="fr_wrong") as client, refused:
        client.models.list()


def test_wrong_model(client):
    """A model that was never served here is not found."""
    with pytest.raises(openai.NotFoundError, match="'nonesuch' does not exist"):
        client.chat.completions.create(
            model="nonesuch", messages=[{"role": "user", "content": "Hello"}]
        )
