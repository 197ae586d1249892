"""A client that leaves, at whatever stage, frees its place at once."""

import http.client
import json
from urllib.parse import urlsplit

import pytest

LONG = "word " * 1000  # tokens are bytes here: 50 s to read


class Request:
    """One request whose client can leave without reading an answer."""

    def __init__(self, stack, prompt, *, stream=True):
        self._connection = http.client.HTTPConnection(urlsplit(stack.base_url).netloc, timeout=60)
        body = {
            "model": stack.ready["model"],
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 4000,
            "stream": stream,
        }
        headers = {
            "Authorization": f"Bearer {stack.ready['api_key']}",
            "Content-Type": "application/json",
        }
        self._connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)

    def first_line(self) -> bytes:
        self._response = self._connection.getresponse()
        return self._response.readline()

    def leave(self) -> None:
        if hasattr(self, "_response"):
            self._response.close()
        self._connection.close()


@pytest.fixture
def request_(slow_stack, eventually):
    """Make requests; after the test none of them holds a slot."""
    made = []

    def make(prompt, **options):
        made.append(Request(slow_stack, prompt, **options))
        return made[-1]

    yield make
    for each in made:
        each.leave()
    assert eventually(lambda: slow_stack.slots_in_use() == 0)
    assert slow_stack.fleet().drift == 0


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
def test_in_prefill(slow_stack, request_, eventually, stream):
    """A client that leaves while its prompt is read frees the slot."""
    request = request_(LONG, stream=stream)
    assert eventually(lambda: slow_stack.slots_in_use() == 1)

    request.leave()

    assert eventually(lambda: slow_stack.slots_in_use() == 0)


def test_in_decode(slow_stack, request_, eventually):
    """A client that leaves in the middle of an answer frees the slot."""
    request = request_("Hello")
    assert request.first_line().startswith(b"data: {")
    assert slow_stack.slots_in_use() == 1

    request.leave()

    assert eventually(lambda: slow_stack.slots_in_use() == 0)


def test_in_queue(slow_stack, request_, eventually):
    """A client that leaves while it waits for a slot gives up its place, and no one else's."""
    for _ in range(2):
        assert request_("Hello").first_line().startswith(b"data: {")
    waiting = request_("Hello")
    assert eventually(lambda: slow_stack.waiting() == 1)

    waiting.leave()

    assert eventually(lambda: slow_stack.waiting() == 0)
    assert slow_stack.slots_in_use() == 2
