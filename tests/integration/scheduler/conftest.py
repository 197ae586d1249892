"""A real scheduler on port 0, and hand-driven edges and workers that speak to it over gRPC."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from fastrun.service import rpc
from fastrun.service.streams import DuplexStream, Outbox
from fastrun.v1.scheduler_pb2 import (
    EdgeMessage,
    EdgeMessages,
    WatchFleetRequest,
    WorkerReport,
    WorkerReports,
)
from fastrun.v1.scheduler_pb2_grpc import SchedulerServiceStub
from fastrun.v1.worker_pb2 import Ping
from scheduler.__main__ import Scheduler
from scheduler.config import Config

LIMIT_S = 10


class Peer:
    """One session; what it receives can be awaited by kind.

    A Welcome of a higher term than any before it answers with another Hello, as all peers do.
    """

    def __init__(self, call, outbox, ping, hello):
        self.received = asyncio.Queue()
        self.outbox = outbox
        self.hello = hello
        self.stream = DuplexStream(call, outbox, on_item=self.hear, ping=lambda: outbox.put(ping))
        self.running = asyncio.create_task(self.stream.run())
        self.pending = None
        self.say(hello=hello)
        self.pending = []  # nothing else is said before the Welcome

    def hear(self, item):
        if item.HasField("welcome"):
            pending, self.pending = self.pending or [], None
            if item.welcome.term > self.hello["term"]:
                self.hello["term"] = item.welcome.term
                self.say(hello=self.hello)
            for each in pending:
                self.put(each)
        self.received.put_nowait(item)

    def put(self, item):
        if self.pending is not None:
            self.pending.append(item)
            return
        self.outbox.put(item)
        self.stream.wake()

    async def next(self, *kinds):
        """Return the next item of one of these kinds, passing over all others."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                item = await self.received.get()
                if item.WhichOneof("item") in kinds:
                    return getattr(item, item.WhichOneof("item"))

    async def leave(self):
        """End the session and wait until it has ended here."""
        self.stream.close()
        async with asyncio.timeout(LIMIT_S):
            return await self.running


class Edge(Peer):
    """An edge's session."""

    def __init__(self, stub, edge_id, lease_ids=(), term=0):
        hello = {"edge_id": edge_id, "lease_ids": lease_ids, "term": term}
        super().__init__(stub.EdgeSession(), Outbox(EdgeMessages), EdgeMessage(ping=Ping()), hello)

    def say(self, **item):
        self.put(EdgeMessage(**item))

    def acquire(self, request_id, *, model="tiny", queue_timeout_ms=10_000, **fields):
        fields |= {"request_id": request_id, "queue_timeout_ms": queue_timeout_ms}
        self.say(acquire={"model": model, "account_id": "acc", **fields})

    async def answer(self):
        """Return the next answer to an Acquire."""
        return await self.next("granted", "queued", "rejected")


class Worker(Peer):
    """A worker's session."""

    def __init__(
        self, stub, worker_id="w", instance_id="w-1", *, slots=1, running=(), voided=(), term=0
    ):
        hello = {
            "worker_id": worker_id,
            "instance_id": instance_id,
            "address": f"{instance_id}:7003",
            "model": {"model": "tiny", "context_length": 256},
            "slots": slots,
            "running_leases": running,
            "voided_lease_ids": voided,
            "term": term,
        }
        super().__init__(
            stub.WorkerSession(), Outbox(WorkerReports), WorkerReport(ping=Ping()), hello
        )

    def say(self, **item):
        self.put(WorkerReport(**item))

    def free(self, lease_id):
        self.say(slot_freed={"lease_id": lease_id})

    async def welcome(self):
        return await self.next("welcome")


class Stack:
    """One scheduler and the channel to it."""

    def __init__(self, service, ports):
        self.service = service
        self.ports = ports
        self.channel = rpc.channel(f"127.0.0.1:{ports['grpc']}")
        self.stub = SchedulerServiceStub(self.channel)
        self.peers = []

    def edge(self, edge_id="edge-1", **fields):
        self.peers.append(Edge(self.stub, edge_id, **fields))
        return self.peers[-1]

    async def add_worker(self, *names, **fields):
        """Return a worker that says Hello."""
        worker = Worker(self.stub, *names, **fields)
        self.peers.append(worker)
        return worker

    async def worker(self, *names, **fields):
        """Return a worker that has been welcomed, and is granted requests."""
        worker = await self.add_worker(*names, **fields)
        worker.welcomed = await worker.welcome()
        name = worker.hello["instance_id"]
        await self.until(
            lambda view: any(
                (each.instance_id, each.state) == (name, "serving") for each in view.workers
            )
        )
        return worker

    async def until(self, condition):
        """Wait until the fleet looks so, as WatchFleet tells; returns the view."""
        async with asyncio.timeout(LIMIT_S):
            async for view in self.stub.WatchFleet(WatchFleetRequest(interval_ms=1)):
                if condition(view):
                    return view
        raise AssertionError("WatchFleet ended")

    async def in_use(self, slots):
        """Wait until so many slots are held."""
        return await self.until(lambda view: sum(w.slots_in_use for w in view.workers) == slots)

    async def close(self):
        for peer in self.peers:
            peer.stream.close()
        await asyncio.gather(*(peer.running for peer in self.peers), return_exceptions=True)
        await self.channel.close()
        await self.service.drain()
        await self.service.stop()


@asynccontextmanager
async def _stack(**settings):
    settings = {"warm_up_s": 0.0, "gone_after_s": 0.3, "suspect_after_s": 60.0} | settings
    config = Config(listen="127.0.0.1:0", admin_listen="127.0.0.1:0", **settings)
    service = Scheduler(config)
    stack = Stack(service, await service.start())
    try:
        yield stack
    finally:
        await stack.close()


@pytest.fixture
def scheduler():
    """How to start one, with settings of its own, for as long as an ``async with`` lasts."""
    return _stack
