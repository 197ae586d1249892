"""`fastrun chat` with what is no OpenAI API."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fastrun.cli.chat_api import ChatApi
from fastrun.cli.errors import CommandError


@pytest.fixture
def answered():
    """Serve one body whatever is asked for, and return where."""
    servers = []

    def serve(body):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 - http.server's name

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/v1"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": [1]}', b'{"data": null}', b"\xff"])
def test_a_list_of_models_that_is_none(answered, body):
    """A page that something else serves there is told as that."""
    url = answered(body)
    with pytest.raises(CommandError, match=f"^{url} does not answer as an OpenAI API$"):
        ChatApi(url, "key").models()


@pytest.mark.parametrize("event", [b"<html>", b"[]", b'{"choices": [1]}', b"1", b"\xff"])
def test_an_answer_that_is_none(answered, event):
    """The same where it was asked for an answer."""
    url = answered(b"data: " + event + b"\n")
    with pytest.raises(CommandError, match=f"^{url} does not answer as an OpenAI API$"):
        list(ChatApi(url, "key").stream([], {}))
