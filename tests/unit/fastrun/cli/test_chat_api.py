import json

import pytest

from fastrun.cli.chat_api import ChatApi, Piece, pieces
from fastrun.cli.errors import CommandError

DONE = b"data: [DONE]\n"


def event(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n"


def delta(finish=None, **fields):
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish}])


def test_pieces():
    """What an answer consists of is read in order, up to its end; comments are passed over."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    stream = [
        b": keep-alive\n",
        b"\n",
        delta(role="assistant", content=""),
        delta(reasoning="So."),
        delta(reasoning_content="So!"),
        delta(content="Hi"),
        delta("stop"),
        event(choices=[], usage=usage),
        DONE,
        delta(content="after the end"),
    ]

    assert list(pieces(stream)) == [
        Piece(),
        Piece(reasoning="So."),
        Piece(reasoning="So!"),
        Piece(content="Hi"),
        Piece(finish="stop"),
        Piece(usage=usage),
    ]


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        ([delta(content="Hi"), event(error={"message": "all gone", "code": 502})], "all gone"),
        ([delta(content="Hi")], "the answer broke off: ask again"),
    ],
    ids=["error", "cut off"],
)
def test_failure(stream, says):
    """An answer that fails, or ends before its end, says so after what came of it."""
    seen = []
    with pytest.raises(CommandError, match=says):
        seen.extend(pieces(stream))
    assert seen == [Piece(content="Hi")]


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8000", "ftp://host/v1", "http:///v1", "http://[::1/v1", "http://host:99999/v1"],
)
def test_no_url(url):
    """What is no URL is refused by name."""
    with pytest.raises(CommandError, match="is no URL such as"):
        ChatApi(url, "key")


def test_no_host():
    """A text that can be no host's name is told like a host that does not answer."""
    url = f"http://{'a' * 100}/v1"
    with pytest.raises(CommandError, match=f"^nothing answers at {url} "):
        ChatApi(url, "key").models()


@pytest.mark.parametrize("key", ["fr_\u201cx\u201d", "fr_x\n"])
def test_no_key(key):
    """A key that no header can carry is refused before anybody is asked, and is not repeated."""
    with pytest.raises(CommandError, match="the API key holds a character that no key has"):
        ChatApi("http://127.0.0.1:1/v1", key)
