"""When the sides of a stream ping."""

import asyncio

import grpc.aio
import pytest

from fastrun.service import streams
from fastrun.service.streams import SCHEDULER_RETRY_S, DuplexStream, Outbox, backoff_s
from fastrun.v1.scheduler_pb2 import EdgeMessage, EdgeMessages
from fastrun.v1.worker_pb2 import Ping
from scheduler.config import Config


class Wire:
    """A transport whose other side says nothing."""

    def __init__(self):
        self.written = []

    async def read(self):
        await asyncio.Event().wait()

    async def write(self, message):
        self.written += [item.WhichOneof("item") for item in message.items]


@pytest.fixture
async def quiet(monkeypatch):
    """A running stream, whose time is told; returns what it wrote, how to send, and how to wait."""
    monkeypatch.setattr(streams, "WATCH_INTERVAL_S", 0.0)
    monkeypatch.setattr(streams, "SILENCE_LIMIT_S", 1e9)
    monkeypatch.setattr(streams.random, "random", lambda: 0.5)
    now, wire, outbox = [100.0], Wire(), Outbox(EdgeMessages)
    stream = DuplexStream(
        wire,
        outbox,
        on_item=lambda item: None,
        ping=lambda: outbox.put(EdgeMessage(ping=Ping())),
        clock=lambda: now[0],
    )

    async def passes(seconds):
        now[0] += seconds
        for _ in range(20):
            await asyncio.sleep(0)
        written, wire.written = wire.written, []
        return written

    async def says():
        outbox.put(EdgeMessage(release={"lease_id": "x"}))
        stream.wake()
        return await passes(0)

    running = asyncio.create_task(stream.run())
    yield passes, says
    stream.close()
    await running


async def test_a_quiet_side_pings(quiet):
    """The first ping comes somewhere before the interval, so that streams part; then each 2 s."""
    passes, _ = quiet
    assert await passes(1.4) == []
    assert await passes(0.2) == ["ping"]
    assert await passes(1.9) == []
    assert await passes(0.2) == ["ping"]


async def test_a_side_that_says_something_does_not_ping(quiet):
    """Any item says that its side lives: a ping comes when none has been sent for 2 s."""
    passes, says = quiet
    assert await passes(1.6) == ["ping"]
    for _ in range(3):
        assert await says() == ["release"]
        assert await passes(1.9) == []
    assert await passes(0.2) == ["ping"]


@pytest.mark.parametrize("error", [grpc.aio.InternalError, grpc.aio.UsageError])
async def test_a_side_that_has_gone_is_no_fault(error):
    """Whatever gRPC raises of it, the stream ends with a reason for the log."""

    class Broken(Wire):
        async def write(self, message):
            raise error("Failed execute_batch")

    outbox = Outbox(EdgeMessages)
    outbox.put(EdgeMessage(ping=Ping()))
    stream = DuplexStream(Broken(), outbox, on_item=lambda item: None, ping=lambda: None)
    stream.wake()
    assert await stream.run() == "the call has ended: Failed execute_batch"


def test_pauses_grow_up_to_a_bound():
    """Each is up to twice the one before, and at least half of what it may be."""
    for attempt in range(1, 20):
        most = min(1.0, 0.1 * 2 ** (attempt - 1))
        assert most / 2 <= backoff_s(attempt, cap_s=1.0) <= most


def test_a_scheduler_waits_longer_for_its_fleet_than_that_pauses():
    """Twice as long: there is time to connect and to say Hello, also on a busy machine."""
    assert Config().warm_up_s >= 2 * SCHEDULER_RETRY_S
