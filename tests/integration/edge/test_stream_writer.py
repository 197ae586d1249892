"""The bytes of a stream on the wire, and what happens to clients that read slowly."""

import asyncio
import importlib.metadata
import json
import re
import socket

import pytest
from aiohttp import web
from aiohttp.base_protocol import BaseProtocol

CHAT = "/v1/chat/completions"


def head(stack, content, version="1.1", extra=""):
    data = json.dumps(content).encode()
    return (
        f"POST {CHAT} HTTP/{version}\r\nHost: a\r\nAuthorization: Bearer {stack.key}\r\n"
        f"X-Request-Id: same\r\n{extra}Content-Length: {len(data)}\r\n\r\n"
    ).encode() + data


async def exchange(stack, sent):
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(sent)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()
        await writer.wait_closed()


def same(answer):
    """Take out what differs from request to request."""
    answer = re.sub(rb"Date: [^\r]*", b"Date: x", answer)
    answer = re.sub(rb"chatcmpl-[0-9a-f]+", b"chatcmpl-x", answer)
    return re.sub(rb'"created":\d+', b'"created":0', answer)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_both_writers_give_the_same_bytes(start, body, version):
    """Status line, headers, chunks and end are the same, whoever writes them."""
    answers = []
    for writer in ("push", "response"):
        async with start(stream_writer=writer) as stack:
            content = body(stream=True, stream_options={"include_usage": True})
            connection = "" if version == "1.0" else "Connection: close\r\n"
            answers.append(same(await exchange(stack, head(stack, content, version, connection))))
    assert answers[0] == answers[1]
    assert answers[0].startswith(f"HTTP/{version} 200 OK\r\n".encode())
    assert (b"0\r\n\r\n" in answers[0]) == (version == "1.1")
    assert b"data: [DONE]\n\n" in answers[0]


async def test_connection_is_kept(start, body):
    """After a pushed stream the same connection serves the next request."""
    async with start() as stack:
        one = head(stack, body(stream=True))
        two = head(stack, body(stream=True), extra="Connection: close\r\n")
        answer = await exchange(stack, one + two)
        assert answer.count(b"HTTP/1.1 200 OK") == 2
        assert answer.count(b"data: [DONE]\n\n") == 2
        assert answer.count(b"\r\n0\r\n\r\n") == 2


async def test_tcp_nodelay(start, body, monkeypatch):
    """A token is sent when it is written, not when the last one was acknowledged."""
    async with start() as stack:
        seen = []
        made = stack.edge._runner.server.connection_made

        def connection_made(handler, transport):
            made(handler, transport)
            seen.append(transport.get_extra_info("socket"))

        monkeypatch.setattr(stack.edge._runner.server, "connection_made", connection_made)
        async with stack.client.stream("POST", CHAT, json=body(stream=True)) as response:
            assert seen[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert response.status_code == 200


class SlowClient:
    """Sends one streamed request and reads only when told."""

    def __init__(self, stack, content):
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sock.connect(("127.0.0.1", stack.port))
        self.sock.sendall(head(stack, content, extra="Connection: close\r\n"))
        self.sock.setblocking(False)

    async def read_all(self):
        loop = asyncio.get_running_loop()
        data = b""
        while piece := await loop.sock_recv(self.sock, 1 << 16):
            data += piece
        self.sock.close()
        return data


def text_of(answer):
    """Undo the chunks, return the text of all events and how many there were."""
    rest = answer.partition(b"\r\n\r\n")[2]
    content = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if int(size, 16) == 0:
            break
        content += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    events = [
        json.loads(each.removeprefix("data: "))
        for each in content.decode().strip().split("\n\n")
        if each != "data: [DONE]"
    ]
    choices = [event["choices"][0]["delta"].get("content", "") for event in events]
    return "".join(choices), len(choices)


@pytest.mark.parametrize("writer", ["push", "response"])
async def test_slow_client_gets_everything_merged(start, body, until, writer):
    """What a slow client has not read is gathered, merged into few events, and nothing is lost."""
    async with start(
        stream_writer=writer, unsent_limit_bytes=1000, gathered_limit_bytes=64 << 20
    ) as stack:
        stack.worker.script = lambda run: run.accept()
        client = SlowClient(stack, body(stream=True))
        await until(lambda: stack.worker.runs)
        run = stack.worker.runs[0]
        pieces = [f"{number:04d}" + "x" * 4000 for number in range(2000)]
        for piece in pieces:
            run.delta(piece)
        run.finish()
        await until(lambda: not stack.edge._scheduler._held)
        quick = await stack.client.get("/v1/models")
        assert quick.status_code == 200
        text, count = text_of(await asyncio.wait_for(client.read_all(), 20))
        assert text == "".join(pieces)
        assert count < 2000


async def test_client_that_reads_nothing_is_cut_off(start, body, until):
    """A client that reads nothing for long is dropped and its generation aborted."""
    async with start(unsent_limit_bytes=1000, stall_timeout_s=0.3) as stack:
        stack.worker.script = lambda run: run.accept()
        client = SlowClient(stack, body(stream=True))
        await until(lambda: stack.worker.runs)
        for _ in range(2000):
            stack.worker.runs[0].delta("x" * 4000)
        await asyncio.wait_for(stack.worker.runs[0].aborted.wait(), 10)
        client.sock.close()


async def test_too_much_gathered_is_cut_off(start, body, until):
    """A client for whom too much is held back is dropped and its generation aborted."""
    async with start(unsent_limit_bytes=1000, gathered_limit_bytes=100_000) as stack:
        stack.worker.script = lambda run: run.accept()
        client = SlowClient(stack, body(stream=True))
        await until(lambda: stack.worker.runs)
        for _ in range(2000):
            stack.worker.runs[0].delta("x" * 4000)
        await asyncio.wait_for(stack.worker.runs[0].aborted.wait(), 10)
        client.sock.close()


def test_what_the_push_writer_stands_on():
    """An upgrade of aiohttp over a minor version has to come with a look at edge.stream_writer.

    It relies on: a handler may write its whole response to the transport; whatever it returns is
    only asked for prepare(), write_eof() and keep_alive; pause_writing() and resume_writing() come
    through the protocol; the transport is the request's own.
    """
    major, minor, *_ = importlib.metadata.version("aiohttp").split(".")
    assert (major, minor) == ("3", "14")
    assert issubclass(web.RequestHandler, BaseProtocol)
    assert isinstance(BaseProtocol.writing_paused, property)
