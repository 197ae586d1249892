"""The load and the engine of `fastrun bench edge`, which are programs in C."""

import asyncio
import os
import shutil
import sys

import pytest
from aiohttp import ClientSession, web

from fastrun.bench.edge import load, running
from fastrun.bench.edge.errors import EdgeBenchError
from fastrun.bench.edge.load import Target
from fastrun.bench.edge.programs import cache_folder, program
from fastrun.bench.edge.scenarios import Scenario

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="they use epoll, and read /proc"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="they need a C compiler"),
]
STREAMS = Scenario(name="streams", connections=4, tokens=8, warm_s=0.1, window_s=0.3)
WHOLE = Scenario(name="whole", streamed=False, connections=2, tokens=8, warm_s=0.1, window_s=0.3)


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    """A cache of these tests' own."""
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


def target(port):
    return Target(name="here", port=port, key="k", model="m", processes={"measured": [os.getpid()]})


async def run(environ, scenario, handler):
    """Run the load against a server of the test's own."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        return await load.run(program("loadgen", environ), scenario, target(runner.addresses[0][1]))
    finally:
        await runner.cleanup()


async def test_streams(environ):
    """Each token of a stream is counted and says how long it took; nothing fails."""
    async with running.engine(program("engine", environ)) as engine:
        result = await load.run(program("loadgen", environ), STREAMS, engine.target)
    assert result.failures == 0
    assert result.requests > 0
    assert result.tokens > 0
    # Each stream has a chunk more, with the reason of its end.
    assert result.chunks > result.tokens
    assert 0 <= result.delay_us.p50 <= result.delay_us.p99 <= result.delay_us.most
    assert result.first_token_us is not None
    assert result.processes["measured"].ran_s > 0
    assert all(kib > 0 for kib in result.processes["measured"].resident_kib)


async def test_a_pace(environ):
    """Paced streams wait between their tokens, and get the first one at once."""
    async with running.engine(program("engine", environ)) as engine:
        await engine.pace(tokens_per_s=100)
        result = await load.run(program("loadgen", environ), STREAMS, engine.target)
    # What is late is not made up for, so a busy machine only makes it fewer.
    assert 0 < result.tokens <= (0.3 * 100 + 2) * 4 + result.requests


async def test_answers_that_are_not_streamed(environ):
    """Whole answers are counted, and have no tokens of which one knows."""
    async with running.engine(program("engine", environ)) as engine:
        result = await load.run(program("loadgen", environ), WHOLE, engine.target)
    assert result.failures == 0
    assert result.requests > 0
    assert (result.chunks, result.tokens, result.delay_us) == (0, 0, None)


async def test_the_engine_takes_chunked_bodies(environ):
    """Gateways may send a body without saying its length."""

    async def body():
        yield b'{"max_tok'
        await asyncio.sleep(0)
        yield b'ens": 3}'

    async with running.engine(program("engine", environ)) as engine, ClientSession() as session:
        url = f"http://{engine.address}/v1/chat/completions"
        async with session.post(url, data=body()) as answer:
            assert (await answer.json())["usage"]["completion_tokens"] == 3


async def test_refusals_are_counted(environ):
    """An answer with another status than 200 is a failure."""

    async def refuse(request):
        return web.json_response({"error": {}}, status=429)

    result = await run(environ, WHOLE, refuse)
    assert result.refused == result.requests > 0


async def test_streams_that_are_cut_are_counted(environ):
    """A stream that ends without [DONE] is a failure."""

    async def cut(request):
        assert request.headers["Authorization"] == "Bearer k"
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"n": 1}\n\n')
        return response

    result = await run(environ, STREAMS, cut)
    assert result.cut == result.requests > 0
    assert result.tokens == 0


async def test_events_may_be_cut_and_joined_anywhere(environ):
    """Tokens are found however the bytes of a stream come: cut anywhere, and several in a chunk."""

    async def crumbs(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        events = b'data: {"t": "@T0000000001 @T0000000002 "}\r\n\r\ndata: [DONE]\n\n'
        for at in range(0, len(events), 7):
            await response.write(events[at : at + 7])
        return response

    result = await run(environ, STREAMS, crumbs)
    assert result.failures == 0
    assert result.chunks > 0
    assert result.tokens == 2 * result.chunks


async def test_nobody_there(environ):
    """A load that reaches nobody counts that, and asks for nothing."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()

    result = await load.run(program("loadgen", environ), WHOLE, target(port))
    assert result.errors > 0
    assert result.requests == 0


async def test_a_load_that_cannot_run(environ):
    """What the program says of itself is told."""
    with pytest.raises(EdgeBenchError, match="here does not take whole: loadgen: --port"):
        await load.run(program("loadgen", environ), WHOLE, target(0))


def test_programs_are_kept(environ):
    """A program is compiled once, and found again."""
    made = program("loadgen", environ)
    assert made.is_relative_to(cache_folder(environ))
    assert program("loadgen", {**environ, "CC": "there-is-none"}) == made


def test_no_compiler(tmp_path):
    """Without a compiler one sentence says what to install."""
    environ = {"XDG_CACHE_HOME": str(tmp_path), "CC": "there-is-none"}
    with pytest.raises(EdgeBenchError, match="install a C compiler"):
        program("loadgen", environ)


def test_a_compiler_that_fails(tmp_path):
    """What a compiler complains of is told, and nothing is kept."""
    environ = {"XDG_CACHE_HOME": str(tmp_path), "CC": "false"}
    with pytest.raises(EdgeBenchError, match="cannot compile the load"):
        program("loadgen", environ)
    assert not any(cache_folder(environ).iterdir())
