"""A prompt that was seen before is not read again, by its own account only."""

import json

import pytest

SYSTEM = (
    "You are a careful assistant who answers in few words and never repeats the question. " * 12
)


@pytest.fixture
def cached_tokens(stack):
    """Ask a question under a long system prompt; return prompt and cached tokens."""

    def ask(api_key, question):
        with stack.client().with_options(api_key=api_key) as client:
            answer = client.chat.completions.create(
                model=stack.ready["model"],
                messages=[
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": question},
                ],
                max_tokens=4,
                temperature=0,
            )
        return answer.usage.prompt_tokens, answer.usage.prompt_tokens_details.cached_tokens

    return ask


def test_same_account_shares_and_another_does_not(stack, shared_machine, cached_tokens):
    """The second request finds the system prompt cached; the same from another account finds 0."""
    own = stack.ready["api_key"]
    prompt, cached = cached_tokens(own, "Hello")
    assert cached == 0
    prompt, cached = cached_tokens(own, "What is 7 + 12?")
    assert prompt // 2 < cached < prompt

    def run(*arguments):
        done = shared_machine.run(*arguments, "--json", FASTRUN_DATA=stack.ready["data"])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    run("account", "create", "eve")
    run("account", "approve", "eve")
    other = run("key", "issue", "eve")["key"]
    assert cached_tokens(other, "What is 7 + 12?")[1] == 0
