"""The long-lived stream over a real gRPC server."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from fastrun.service import rpc, streams
from fastrun.service.errors import ServiceError
from fastrun.service.rpc import RpcServer
from fastrun.service.streams import DuplexStream, Outbox
from fastrun.v1 import worker_pb2, worker_pb2_grpc
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.worker_pb2 import EdgeFrame, EdgeFrameItem, Ping, StreamEvent, WorkerFrame


class EchoServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Answers each Abort with an event of the same stream id."""

    def __init__(self):
        self.ended = asyncio.Queue()
        self.frames = 0
        self.frozen = False

    async def Attach(self, request_iterator, context):
        outbox = Outbox(WorkerFrame)

        def on_item(item):
            if item.HasField("abort") and not self.frozen:
                outbox.put(StreamEvent(stream_id=item.abort.stream_id))
                stream.wake()

        stream = DuplexStream(
            context, outbox, on_item=on_item, ping=lambda: outbox.put(StreamEvent())
        )
        try:
            reason = await stream.run()
        except asyncio.CancelledError:
            reason = "cancelled"
            raise
        finally:
            self.ended.put_nowait(reason)

    async def GetInfo(self, request, context):
        raise ServiceError(
            ErrorReason.ERROR_REASON_NO_SLOT, "every slot is busy", retry_after_ms=250
        )


@asynccontextmanager
async def echo_server():
    servicer = EchoServicer()
    server = RpcServer()
    server.add(
        worker_pb2.DESCRIPTOR.services_by_name["WorkerService"],
        worker_pb2_grpc.add_WorkerServiceServicer_to_server,
        servicer,
    )
    port = await server.start("127.0.0.1:0")
    channel = rpc.channel(f"127.0.0.1:{port}")
    try:
        yield servicer, worker_pb2_grpc.WorkerServiceStub(channel), server
    finally:
        await channel.close()
        await server.stop(0)


def client(stub, received):
    outbox = Outbox(EdgeFrame)
    stream = DuplexStream(
        stub.Attach(),
        outbox,
        on_item=received.put_nowait,
        ping=lambda: outbox.put(EdgeFrameItem(ping=Ping())),
    )
    return outbox, stream


async def test_items_arrive_in_order_and_batched():
    """Everything put before the writer runs goes out in one message and keeps its order."""
    async with echo_server() as (_, stub, _server):
        received = asyncio.Queue()
        outbox, stream = client(stub, received)
        running = asyncio.create_task(stream.run())
        for number in range(1, 501):
            outbox.put(EdgeFrameItem(abort=worker_pb2.Abort(stream_id=number)))
        stream.wake()
        got = [(await received.get()).stream_id for _ in range(500)]
        assert list(range(1, 501)) == got
        stream.close()
        assert await running == "closed by this side"


async def test_end_of_one_side_is_seen_by_the_other():
    """When the client closes its stream, the server's run() ends."""
    async with echo_server() as (servicer, stub, _server):
        received = asyncio.Queue()
        outbox, stream = client(stub, received)
        running = asyncio.create_task(stream.run())
        outbox.put(EdgeFrameItem(abort=worker_pb2.Abort(stream_id=1)))
        stream.wake()
        await received.get()
        stream.close()
        await running
        assert await asyncio.wait_for(servicer.ended.get(), 5) is not None


async def test_server_gone_ends_the_client_stream():
    """When the server stops, the client's run() returns a reason instead of raising."""
    async with echo_server() as (_, stub, server):
        received = asyncio.Queue()
        outbox, stream = client(stub, received)
        running = asyncio.create_task(stream.run())
        outbox.put(EdgeFrameItem(abort=worker_pb2.Abort(stream_id=1)))
        stream.wake()
        await received.get()
        await server.stop(0)
        assert await asyncio.wait_for(running, 5)


async def test_silence_closes_a_stream(monkeypatch):
    """A peer that sends nothing, not even pings, is taken for dead."""
    monkeypatch.setattr(streams, "SILENCE_LIMIT_S", 0.3)
    monkeypatch.setattr(streams, "WATCH_INTERVAL_S", 0.05)
    monkeypatch.setattr(streams.random, "random", lambda: 0.0)  # the side that began notices first
    async with echo_server() as (_, stub, _server):
        _outbox, stream = client(stub, asyncio.Queue())
        assert (await asyncio.wait_for(stream.run(), 5)).startswith("silent")


async def test_pings_keep_a_quiet_stream_open(monkeypatch):
    """With pings from both sides a stream without traffic outlives the silence limit."""
    monkeypatch.setattr(streams, "SILENCE_LIMIT_S", 0.4)
    monkeypatch.setattr(streams, "PING_INTERVAL_S", 0.1)
    monkeypatch.setattr(streams, "WATCH_INTERVAL_S", 0.05)
    async with echo_server() as (_, stub, _server):
        received = asyncio.Queue()
        _outbox, stream = client(stub, received)
        running = asyncio.create_task(stream.run())
        for _ in range(10):
            assert (await asyncio.wait_for(received.get(), 5)).stream_id == 0
        assert not running.done()
        stream.close()
        await running


async def test_split_bounds_messages():
    """A batch over the limit is cut into several, in order; a single item is never cut."""
    items = [
        StreamEvent(stream_id=number, event={"delta": {"content": "x" * 200_000}})
        for number in range(1, 21)
    ]
    parts = list(streams.split(WorkerFrame(items=items)))
    assert [item.stream_id for part in parts for item in part.items] == list(range(1, 21))
    assert all(part.ByteSize() <= streams.MAX_MESSAGE_BYTES for part in parts)


async def test_a_failed_call_carries_its_detail():
    """A ServiceError reaches the caller as status and trailer, with reason and retry time."""
    async with echo_server() as (_, stub, _server):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetInfo(worker_pb2.GetInfoRequest())
        error = ServiceError.of_rpc(caught.value)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.detail.reason == ErrorReason.ERROR_REASON_NO_SLOT
        assert error.detail.retry_after_ms == 250
