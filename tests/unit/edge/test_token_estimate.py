"""What a request is taken to use, before a worker has counted."""

import pytest

from edge import generate_request
from edge.request_rules import decode_chat, decode_completion

IDENTITY = {"request_id": "r", "cache_salt": "s", "seed": 1}


def completion(body):
    asked = decode_completion(body, depth_limit=64)
    return generate_request.of_completion(asked, **IDENTITY).token_estimate


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ('"prompt": "12345678", "max_tokens": 10', 2 + 10),
        ('"prompt": "12345678", "max_tokens": 9000', 2 + 1024),
        ('"prompt": "123456789", "max_tokens": 10', 3 + 10),
        ('"prompt": "12345678", "max_tokens": 10, "n": 3', 2 + 3 * 10),
        ('"prompt": ["1234", "1234"], "max_tokens": 10, "n": 2', 2 + 4 * 10),
        ('"prompt": "\u00e9\u00e9", "max_tokens": 1', 1 + 1),
    ],
)
def test_completions(fields, tokens):
    """Each prompt counts once, and each answer with what it may have, within reason."""
    assert tokens == completion(f'{{"model": "m", {fields}}}'.encode())


def test_chat():
    """All that goes into a conversation counts, and an answer without a limit is of usual length."""

    def estimate(text):
        body = f'{{"model": "m", "messages": [{{"role": "user", "content": "{text}"}}]}}'
        chat = decode_chat(body.encode(), depth_limit=64)
        return generate_request.of_chat(chat, **IDENTITY).token_estimate

    assert 1024 < estimate("hi") < 1024 + 20
    assert 1024 + 1000 < estimate("word" * 1000) < 1024 + 1020
