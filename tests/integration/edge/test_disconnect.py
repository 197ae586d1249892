"""A client that leaves: at every stage what it waited for or ran is given back at once."""

import asyncio
import json

import pytest

CHAT = "/v1/chat/completions"


async def send(stack, content):
    """Open a connection and send one chat completion."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    data = json.dumps(content).encode()
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {stack.key}\r\n"
        f"Content-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    return reader, writer


def leave(writer):
    writer.transport.abort()


@pytest.mark.parametrize("stream", [False, True])
async def test_in_the_queue(start, body, until, stream):
    """A client that leaves while it waits is cancelled at the scheduler."""
    async with start() as stack:
        stack.scheduler.on_acquire = stack.scheduler.queue
        _, writer = await send(stack, body(stream=stream))
        await until(lambda: stack.scheduler.acquires)
        leave(writer)
        await until(lambda: stack.scheduler.cancels)
        assert stack.scheduler.cancels == [stack.scheduler.acquires[0].request_id]


async def test_grant_that_crosses_the_cancel(start, body, until):
    """A grant that comes after its client has left is released."""
    async with start() as stack:
        stack.scheduler.on_acquire = stack.scheduler.queue
        _, writer = await send(stack, body())
        await until(lambda: stack.scheduler.acquires)
        leave(writer)
        await until(lambda: stack.scheduler.cancels)
        stack.scheduler.grant(stack.scheduler.acquires[0])
        await until(lambda: stack.scheduler.releases == ["lease_1"])
        assert stack.worker.runs == []


@pytest.mark.parametrize("stream", [False, True])
async def test_in_prefill(start, body, until, stream):
    """A client that leaves before the first token has its generation aborted."""
    async with start() as stack:
        stack.worker.script = lambda run: run.accept()
        _, writer = await send(stack, body(stream=stream))
        await until(lambda: stack.worker.runs)
        leave(writer)
        await asyncio.wait_for(stack.worker.runs[0].aborted.wait(), 5)
        assert stack.scheduler.losts == stack.scheduler.releases == []


@pytest.mark.parametrize("writer_kind", ["push", "response"])
async def test_in_decode(start, body, until, writer_kind):
    """A client that leaves in mid-stream has its generation aborted, and no other notices."""
    async with start(stream_writer=writer_kind) as stack:
        stack.worker.script = lambda run: run.delta("Once")
        reader, writer = await send(stack, body(stream=True))
        await reader.readuntil(b"Once")
        other_reader, other_writer = await send(stack, body(stream=True))
        await other_reader.readuntil(b"Once")
        leave(writer)
        await asyncio.wait_for(stack.worker.runs[0].aborted.wait(), 5)
        other = stack.worker.runs[1]
        assert not other.aborted.is_set()
        other.answer(" more")
        await other_reader.readuntil(b"[DONE]")
        leave(other_writer)


async def test_plain_in_decode(start, body, until):
    """A client that leaves while its plain reply is collected has its generation aborted."""
    async with start() as stack:
        stack.worker.script = lambda run: run.delta("Once")
        _, writer = await send(stack, body())
        await until(lambda: stack.worker.runs)
        leave(writer)
        await asyncio.wait_for(stack.worker.runs[0].aborted.wait(), 5)


async def test_unwritten_start(start, body, until):
    """A client that leaves while its worker is being connected costs a Release, and no Start."""
    async with start(connect_timeout_s=30) as stack:
        mute = []
        listening = await asyncio.start_server(lambda _, each: mute.append(each), "127.0.0.1", 0)
        address = listening.sockets[0].getsockname()
        stack.worker.address = f"127.0.0.1:{address[1]}"  # accepts, and never speaks HTTP/2
        _, writer = await send(stack, body())
        await until(lambda: stack.scheduler.acquires)
        await until(lambda: stack.edge._workers._links)
        leave(writer)
        await until(lambda: stack.scheduler.releases == ["lease_1"])
        assert stack.scheduler.losts == []
        for each in mute:
            leave(each)
        listening.close()


async def test_abort_without_an_answer(start, body, until):
    """A worker that does not answer an Abort is waited for a while, and then no longer."""
    async with start(abort_timeout_s=0.2) as stack:
        stack.worker.answers_aborts = False
        stack.worker.script = lambda run: run.delta("Once")
        _, writer = await send(stack, body())
        await until(lambda: stack.worker.runs)
        leave(writer)
        await asyncio.wait_for(stack.worker.runs[0].aborted.wait(), 5)
        await until(lambda: not stack.edge._scheduler._held)
        stack.worker.runs[0].delta("too late")
        response = await stack.client.get("/v1/models")
        assert response.status_code == 200


async def test_hundred_leave_at_random(start, body, until):
    """Of many clients on one Attach those that stay get whole answers, those that leave are gone."""
    async with start() as stack:
        stack.worker.script = lambda run: run.delta("Once")
        stay = [await send(stack, body(stream=True)) for _ in range(10)]
        go = [await send(stack, body(stream=True)) for _ in range(100)]
        await until(lambda: len(stack.worker.runs) == 110)
        for _, writer in go:
            leave(writer)
        await until(lambda: sum(run.aborted.is_set() for run in stack.worker.runs) == 100)
        for run in stack.worker.runs:
            if not run.aborted.is_set():
                run.answer(" more")
        for reader, writer in stay:
            await asyncio.wait_for(reader.readuntil(b"[DONE]"), 5)
            leave(writer)
        await until(lambda: not stack.edge._scheduler._held)
        await until(lambda: stack.edge._middleware.running == 0)
