"""Which path is served by whom."""

import pytest

from edge.errors import Refusal
from edge.routes import Route, Routes, endpoint_of

CHAT = Route("chat", {"POST": object()})
LIST = Route("models", {"GET": object(), "HEAD": object()})
ITEM = Route("model", {"GET": object()})
FRONT = Route("front", {"GET": object()})
ROUTES = Routes({"/v1/chat/completions": CHAT, "/v1/models": LIST, "/v1/models/": ITEM, "/": FRONT})


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions/", CHAT),
        ("//v1//chat///completions", CHAT),
        ("/v1/models", LIST),
        ("/v1/models/", LIST),
        ("/v1/models/a", ITEM),
        ("/v1/models/org/name", ITEM),
        ("/", FRONT),
        ("", FRONT),
    ],
)
def test_found(path, route):
    """Neither doubled nor trailing slashes matter, and ids may hold slashes."""
    assert ROUTES.find(path) is route


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", "there is no such path, use /v1/chat/completions"),
        ("/v1/v1/models", "there is no such path, use /v1/models"),
        ("/api/models", "there is no such path, use /v1/models"),
        ("/models/org/name", "there is no such path, use /v1/models/MODEL"),
        ("/v1/responses", "there is no such path, use /v1/chat/completions"),
        ("/v1/audio", "there is no such path, GET / lists what there is"),
        ("*", "there is no such path, GET / lists what there is"),
        ("/" + "x" * 500, "there is no such path, GET / lists what there is"),
    ],
)
def test_not_found(path, hint):
    """The right path is told where it can be guessed."""
    with pytest.raises(Refusal) as caught:
        ROUTES.find(path)
    assert (caught.value.status, caught.value.message) == (404, hint)


def test_methods():
    """A wrong method is told the right ones."""
    assert endpoint_of(LIST, "HEAD") is LIST.endpoints["HEAD"]
    with pytest.raises(Refusal) as caught:
        endpoint_of(LIST, "DELETE")
    assert caught.value.status == 405
    assert caught.value.all_headers() == {"Allow": "GET, HEAD, OPTIONS"}
