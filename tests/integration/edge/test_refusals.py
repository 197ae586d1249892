"""Every refusal of the edge: its status, its type, its headers, always in one envelope."""

import asyncio
import json

import pytest

from fastrun.v1.error_pb2 import ErrorReason

CHAT = "/v1/chat/completions"


def envelope(response, status, kind):
    """Check the envelope and return its message."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "code"}
    assert error["type"] == kind
    assert error["code"] == status
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    if status in (429, 500, 502, 503):
        assert int(response.headers["retry-after"]) >= 1
    else:
        assert "retry-after" not in response.headers
    return error["message"]


@pytest.mark.parametrize(
    ("reason", "status", "kind", "message"),
    [
        ("QUEUE_FULL", 429, "rate_limit_error", "all backends for this model are at capacity"),
        ("QUEUE_TIMEOUT", 429, "rate_limit_error", "all backends for this model are at capacity"),
        ("NO_WORKER", 503, "unavailable", "no backend is available for this model"),
        ("UNKNOWN_MODEL", 404, "invalid_request_error", "as told"),
        ("UNAVAILABLE", 503, "unavailable", "as told"),
        ("INTERNAL", 500, "upstream_error", "internal error, please report the x-request-id"),
    ],
)
async def test_rejected_by_the_scheduler(start, body, reason, status, kind, message):
    """Each reason of the scheduler has its status, type and message, also for a stream."""
    async with start() as stack:
        code = ErrorReason.Value(f"ERROR_REASON_{reason}")
        stack.scheduler.on_acquire = lambda acquire: stack.scheduler.reject(
            acquire, code, message="as told"
        )
        for stream in (False, True):
            response = await stack.client.post(CHAT, json=body(stream=stream))
            assert envelope(response, status, kind) == message


async def test_retry_after_is_rounded_up(start, body):
    """A scheduler's 2,100 ms are 3 whole seconds to a client."""
    async with start() as stack:
        stack.scheduler.on_acquire = lambda acquire: stack.scheduler.reject(
            acquire, ErrorReason.ERROR_REASON_QUEUE_FULL, retry_after_ms=2100
        )
        response = await stack.client.post(CHAT, json=body())
        assert response.headers["retry-after"] == "3"


async def test_bad_fields(start, body):
    """A wrong field is a 400 that names it, before any slot is asked for."""
    async with start() as stack:
        for fields, message in [
            ({"model": None}, "model is required"),
            ({"model": ""}, "model is required"),
            ({"messages": None}, "messages is required"),
            ({"max_tokens": 0}, "max_tokens must be a whole number from 1 to 16384"),
            ({"temperature": 2.5}, "temperature must be a number from 0 to 2"),
            ({"stream_options": {}}, "stream_options is only allowed when stream is true"),
            ({"tools": [{}]}, "tools[0].type is required"),
            ({"logit_bias": {"1": 1}}, "logit_bias is not supported"),
        ]:
            response = await stack.client.post(CHAT, json=body(**fields))
            assert envelope(response, 400, "invalid_request_error") == message
        assert stack.scheduler.acquires == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"[]",
        b"null",
        b'{"model": NaN}',
        b'{"model": "\\ud800"}',
        b'{"model": 1e999}',
        b"\xff\xfe{\x00}\x00",
        b'{"x": ' + b"[" * 400 + b"]" * 400 + b"}",
        b'{"x": ' + b'{"a":' * 30_000 + b"1" + b"}" * 30_000 + b"}",
    ],
    ids=lambda content: repr(content[:16]),
)
async def test_not_json(start, content):
    """What is not one JSON object is a 400."""
    async with start() as stack:
        response = await stack.client.post(CHAT, content=content)
        envelope(response, 400, "invalid_request_error")


async def test_unknown_model(start, body):
    """A model that nobody ever served is a 404; while the list may be incomplete, one asks."""
    async with start() as stack:
        response = await stack.client.post(CHAT, json=body(model="no/such"))
        message = envelope(response, 404, "invalid_request_error")
        assert message == "model 'no/such' does not exist"
        assert stack.scheduler.acquires == []


async def test_prompt_over_the_window(start, body):
    """A text that cannot fit into the window is a 400 before any slot is asked for."""
    async with start() as stack:
        long = [{"role": "user", "content": "x" * 10_001}]
        response = await stack.client.post(CHAT, json=body(messages=long))
        message = envelope(response, 400, "invalid_request_error")
        assert message == "the prompt is over the context window of 1000 tokens"
        fits = [{"role": "user", "content": "x" * 10_000}]
        response = await stack.client.post(CHAT, json=body(messages=fits))
        assert response.status_code == 200


async def test_invalid_for_the_worker(start, body):
    """What only the worker can refuse is its 400, with its sentence, and is not tried again."""
    async with start(workers=2) as stack:
        for worker in stack.workers:
            worker.script = lambda run: run.fail(
                ErrorReason.ERROR_REASON_INVALID_REQUEST, "the prompt has 1001 tokens"
            )
        response = await stack.client.post(CHAT, json=body(stream=True))
        assert envelope(response, 400, "invalid_request_error") == "the prompt has 1001 tokens"
        assert sum(len(worker.runs) for worker in stack.workers) == 1


async def test_paths_and_methods(start):
    """Unknown paths are 404 with the right one where it can be guessed; wrong methods are 405."""
    async with start() as stack:
        for path, hint in [
            ("/chat/completions", "use /v1/chat/completions"),
            ("/v1/v1/chat/completions", "use /v1/chat/completions"),
            ("/models", "use /v1/models"),
            ("/v1/embeddings", "GET / lists what there is"),
        ]:
            response = await stack.client.post(path, json={})
            assert hint in envelope(response, 404, "invalid_request_error")
        response = await stack.client.get(CHAT)
        envelope(response, 405, "invalid_request_error")
        assert response.headers["allow"] == "OPTIONS, POST"
        response = await stack.client.options(CHAT)
        assert (response.status_code, response.headers["allow"]) == (204, "OPTIONS, POST")


ORIGIN = "https://chat.example"


@pytest.mark.parametrize(
    ("origins", "allowed"),
    [([], None), (["*"], "*"), ([ORIGIN], ORIGIN), (["https://other.example"], None)],
)
async def test_cross_origin(start, body, origins, allowed):
    """Web pages may call where they are configured to, and see streams and refusals alike."""
    async with start(cors_origins=origins) as stack:
        key = stack.client.headers.pop("authorization")
        asks = {
            "origin": ORIGIN,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type,x-stainless-os",
        }
        preflight = await stack.client.options(CHAT, headers=asks)
        assert preflight.status_code == 204
        if origins:
            assert preflight.headers["access-control-allow-methods"] == "OPTIONS, POST"
            names = preflight.headers["access-control-allow-headers"]
            assert names == asks["access-control-request-headers"]
        headers = {"origin": ORIGIN, "authorization": key}
        for response in (
            preflight,
            await stack.client.post(CHAT, json=body(), headers={"origin": ORIGIN}),
            await stack.client.post(CHAT, json=body(), headers=headers),
            await stack.client.post(CHAT, json=body(stream=True), headers=headers),
            await stack.client.get("/nowhere", headers=headers),
        ):
            assert response.headers.get("access-control-allow-origin") == allowed
            assert response.headers.get("vary") == (
                "Origin" if origins not in ([], ["*"]) else None
            )


async def test_doubled_and_trailing_slashes(start, body):
    """They do not matter, and nothing is redirected."""
    async with start() as stack:
        response = await stack.client.post("/v1//chat/completions/?api-version=1", json=body())
        assert response.status_code == 200


async def test_media_types(start, body):
    """JSON in any spelling or without a type is taken; other types and codings are 415."""
    async with start() as stack:
        content = json.dumps(body()).encode()
        for headers in [
            {},
            {"content-type": "Application/JSON; charset=utf-8"},
            {"content-type": "application/vnd.api+json"},
            {"content-type": "application/json", "content-encoding": "identity"},
        ]:
            response = await stack.client.post(CHAT, content=content, headers=headers)
            assert response.status_code == 200, response.text
        for headers in [
            {"content-type": "text/plain"},
            {"content-type": "application/x-www-form-urlencoded"},
            {"content-type": "multipart/form-data; boundary=b"},
            {"content-type": "application/json", "content-encoding": "gzip"},
        ]:
            response = await stack.client.post(CHAT, content=content, headers=headers)
            envelope(response, 415, "invalid_request_error")


async def test_body_limit(start, body):
    """A body over the limit is a 413, by its length or while it is read."""
    async with start(body_limit_bytes=1000) as stack:
        large = json.dumps(body(user="x" * 2000)).encode()

        async def pieces():
            for begin in range(0, len(large), 100):
                yield large[begin : begin + 100]

        for content in (large, pieces()):
            response = await stack.client.post(CHAT, content=content)
            envelope(response, 413, "invalid_request_error")


async def raw(port, *parts):
    """Send bytes, return all that comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()
        await writer.wait_closed()


def parse(answer):
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.lower(), json.loads(content)["error"] if content else None


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nBad Header: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 200 + b"\r\n", 431),
    ],
    ids=["line", "name", "length", "long length", "long target", "long header", "many headers"],
)
async def test_malformed_http(start, sent, status):
    """What the HTTP server itself refuses comes in the same envelope."""
    async with start() as stack:
        got, head, error = parse(await raw(stack.port, sent))
        assert got == status
        assert head.startswith(b"http/1.1 ")
        assert b"\r\nx-request-id: " in head
        assert b"\r\nconnection: close" in head
        assert error["code"] == status
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("line", "status_line"),
    [
        (b"GET /healthz HTTP/2.0\r\n", b"HTTP/1.1 200 OK"),
        (b"GET /healthz\r\n", b"HTTP/1.1 200 OK"),
        (b"GET /healthz HTTP/1.0\r\n", b"HTTP/1.0 200 OK"),
        (b"GET /healthz HTTP/1.9\r\n", b"HTTP/1.1 400 Bad Request"),
    ],
    ids=["2.0", "none", "1.0", "1.9"],
)
async def test_versions(start, line, status_line):
    """An answer says a version that the edge speaks, whatever the request says."""
    async with start() as stack:
        got = await raw(stack.port, line + b"Host: a\r\nConnection: close\r\n\r\n")
        assert got.partition(b"\r\n")[0] == status_line


async def test_malformed_chunks(start):
    """A chunked body that breaks its own rules is a 400."""
    async with start() as stack:
        sent = (
            f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {stack.key}\r\n"
            "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n"
        ).encode()
        status, _, error = parse(await raw(stack.port, sent))
        assert (status, error["code"]) == (400, 400)


async def test_slow_head(start):
    """A head that does not come in time is a 408, and the connection is closed."""
    async with start(header_timeout_s=0.2) as stack:
        status, head, error = parse(await raw(stack.port, b"GET / HTTP/1.1\r\nHos"))
        assert (status, error["code"]) == (408, 408)
        assert b"connection: close" in head
        assert b"x-request-id: " in head


async def test_slow_body(start):
    """A body that does not come in time is a 408."""
    async with start(body_timeout_s=0.2) as stack:
        sent = (
            f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {stack.key}\r\n"
            "Content-Length: 100\r\nConnection: close\r\n\r\n{"
        ).encode()
        status, _, error = parse(await raw(stack.port, sent))
        assert (status, error["code"]) == (408, 408)


async def test_no_room_for_large_bodies(start, body):
    """While large bodies take all the room, another is a 503 and small ones are served."""
    large = json.dumps(body(user="x" * 200_000)).encode()
    async with start(bodies_limit_bytes=600_000) as stack:
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {stack.key}\r\n"
            f"Content-Length: {len(large)}\r\n\r\n"
        )
        _, slow = await asyncio.open_connection("127.0.0.1", stack.port)
        slow.write(head.encode() + large[:-1])  # what has come is held, the rest is waited for

        async def sent():
            return await stack.client.post(CHAT, content=large)

        while (refused := await sent()).status_code == 200:
            pass
        envelope(refused, 503, "unavailable")
        assert refused.headers["retry-after"] == "1"
        assert (await stack.client.post(CHAT, json=body())).status_code == 200
        slow.close()
        await slow.wait_closed()
        while (await sent()).status_code == 503:
            pass


async def test_expect_continue(start, body):
    """100 Continue comes after the key was checked; any other expectation is a 417. HTTP/1.0 has none."""
    async with start() as stack:
        content = json.dumps(body()).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n"
            f"Expect: %s\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        good = await raw(stack.port, (head % (stack.key, "100-continue")).encode(), content)
        assert good.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
        status, _, _ = parse(await raw(stack.port, (head % ("fr_x", "100-continue")).encode()))
        assert status == 401
        status, _, _ = parse(await raw(stack.port, (head % (stack.key, "tea")).encode()))
        assert status == 417
        old = (head % (stack.key, "100-continue")).replace("HTTP/1.1", "HTTP/1.0").encode()
        assert (await raw(stack.port, old, content)).startswith(b"HTTP/1.0 200 OK")


async def test_request_id(start, body):
    """A client's well-formed x-request-id comes back; else one is made. Records have their own."""
    async with start() as stack:
        own = {"x-request-id": "my-id_1.2"}
        response = await stack.client.post(CHAT, json=body(), headers=own)
        assert response.headers["x-request-id"] == "my-id_1.2"
        response = await stack.client.post(CHAT, json={}, headers={"x-request-id": stack.key})
        assert response.headers["x-request-id"] != stack.key
        bad = {"x-request-id": "no spaces"}
        response = await stack.client.post(CHAT, json=body(stream=True), headers=bad)
        made = response.headers["x-request-id"]
        assert made == stack.worker.runs[-1].request.request_id
        assert stack.worker.runs[0].request.request_id != "my-id_1.2"


async def test_a_fault_of_ours(start, body, monkeypatch):
    """An exception nobody expected is a 500 that tells nothing of it."""
    async with start() as stack:

        def broken(*args, **kwargs):
            raise RuntimeError("secret detail")

        monkeypatch.setattr("edge.chat.decode_chat", broken)
        response = await stack.client.post(CHAT, json=body())
        assert "secret" not in envelope(response, 500, "upstream_error")


async def test_keep_alive_after_a_refusal(start, body):
    """A refused request leaves its connection usable, also when its body was not wanted."""
    async with start() as stack:
        content = json.dumps(body()).encode()
        one = (
            f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n"
            f"Content-Length: {len(content)}\r\n%s\r\n"
        )
        sent = (one % ("fr_bad", "")).encode() + content
        sent += (one % (stack.key, "Connection: close\r\n")).encode() + content
        answer = await raw(stack.port, sent)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"HTTP/1.1 200 OK" in answer
