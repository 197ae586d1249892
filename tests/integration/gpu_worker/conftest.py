"""A real worker over the scripted engine, and a scheduler and an edge driven by hand."""

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from fastrun.service import leases, rpc
from fastrun.service.rpc import RpcServer
from fastrun.service.streams import DuplexStream, Outbox
from fastrun.v1 import scheduler_pb2, scheduler_pb2_grpc, worker_pb2_grpc
from fastrun.v1.generation_pb2 import ChatMessage, GenerateRequest, Role, Sampling
from fastrun.v1.scheduler_pb2 import LeaseClaims, Void, Welcome, WorkerCommand, WorkerCommands
from fastrun.v1.worker_pb2 import Abort, EdgeFrame, EdgeFrameItem, Ping, Start
from gpu_worker import engines
from gpu_worker.config import Config
from gpu_worker.service import WorkerProcess

LIMIT_S = 20
TINY = Path(__file__).parents[2] / "models" / "tiny" / "tiny.gguf"


class Scheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Welcomes workers, signs leases, and keeps what the worker reports."""

    def __init__(self, term=7):
        self.term = term
        self.key = b"k" * 32
        self.hellos = []
        self.hellos_again = []
        """Those that answer a Welcome of a higher term."""
        self.heartbeats = []
        self.freed = []
        self.changed = asyncio.Condition()
        self._stream = None
        self._outbox = None
        self._server = None
        self.port = None
        self._granted = 0

    async def start(self, port=0):
        self._server = RpcServer()
        self._server.add(
            scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"],
            scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server,
            self,
        )
        self.port = await self._server.start(f"127.0.0.1:{port}")

    async def stop(self):
        await self._server.stop(0)

    async def WorkerSession(self, request_iterator, context):
        self._outbox = Outbox(WorkerCommands)
        self._greeted = False
        self._stream = DuplexStream(
            context,
            self._outbox,
            on_item=self._on_report,
            ping=lambda: self.command(ping=Ping()),
        )
        self.command(welcome=Welcome(term=self.term, lease_key=self.key))
        await self._stream.run()

    def _on_report(self, report):
        kind = report.WhichOneof("item")
        if kind == "hello":
            (self.hellos_again if self._greeted else self.hellos).append(report.hello)
            self._greeted = True
        elif kind == "heartbeat":
            self.heartbeats.append(report.heartbeat)
        elif kind == "slot_freed":
            self.freed.append(report.slot_freed)
        self._task = asyncio.ensure_future(self._notify())

    async def _notify(self):
        async with self.changed:
            self.changed.notify_all()

    def command(self, **item):
        self._outbox.put(WorkerCommand(**item))
        self._stream.wake()

    def void(self, lease_id):
        self.command(void=Void(lease_id=lease_id))

    def break_session(self):
        self._stream.close()

    def lease(self, lease_id=None, **changes):
        """Sign a lease for the worker that said Hello last."""
        self._granted += 1
        claims = {
            "lease_id": lease_id or f"lease-{self._granted}",
            "instance_id": self.hellos[-1].instance_id,
            "term": self.term,
        }
        return leases.sign(LeaseClaims(**(claims | changes)), self.key)

    def freed_ids(self):
        return [freed.lease_id for freed in self.freed]

    async def until(self, condition):
        """Wait until a condition on this object holds."""

        async def wait():
            async with self.changed:
                await self.changed.wait_for(lambda: condition(self))

        await asyncio.wait_for(wait(), LIMIT_S)


class Edge:
    """One Attach; keeps every event by stream."""

    def __init__(self, stub):
        self._outbox = Outbox(EdgeFrame)
        self.call = stub.Attach()
        self._stream = DuplexStream(
            self.call,
            self._outbox,
            on_item=self._on_event,
            ping=lambda: self._outbox.put(EdgeFrameItem(ping=Ping())),
        )
        self.events = {}
        self.ended = {}
        self.moved = {}
        self._last_id = 0
        self.task = asyncio.create_task(self._stream.run())

    def _on_event(self, item):
        if item.stream_id == 0:
            return
        kind = item.event.WhichOneof("event")
        self.events[item.stream_id].append((kind, getattr(item.event, kind)))
        if kind in ("finished", "failed"):
            self.ended[item.stream_id].set()
        if kind == "delta":
            self.moved[item.stream_id].set()

    def start(self, request, stream_id=None):
        self._last_id = stream_id or self._last_id + 1
        self.events.setdefault(self._last_id, [])
        self.ended[self._last_id] = asyncio.Event()
        self.moved[self._last_id] = asyncio.Event()
        self.put(start=Start(stream_id=self._last_id, request=request))
        return self._last_id

    def abort(self, stream_id):
        self.put(abort=Abort(stream_id=stream_id))

    def put(self, **item):
        self._outbox.put(EdgeFrameItem(**item))
        self._stream.wake()

    async def first_delta(self, stream_id):
        await asyncio.wait_for(self.moved[stream_id].wait(), LIMIT_S)

    async def end(self, stream_id):
        """Wait for the last event and return all."""
        await asyncio.wait_for(self.ended[stream_id].wait(), LIMIT_S)
        return self.events[stream_id]

    def close(self):
        self._stream.close()


def ask(text="hello", *, lease=b"", max_tokens=None, model="scripted", **fields):
    """Return a request with one user message."""
    return GenerateRequest(
        request_id="request",
        model=model,
        lease=lease,
        messages=[ChatMessage(role=Role.ROLE_USER, content=text)],
        sampling=Sampling(max_tokens=max_tokens, temperature=0),
        **fields,
    )


class Stack:
    """One scheduler and one worker, up."""

    def __init__(self, scheduler, worker, ports, channel, left, drained):
        self.drained = drained
        self.scheduler = scheduler
        self.worker = worker
        self.ports = ports
        self.stub = worker_pb2_grpc.WorkerServiceStub(channel)
        self.left = left
        self._edges = []

    def edge(self):
        edge = Edge(self.stub)
        self._edges.append(edge)
        return edge

    def ask(self, text="hello", **fields):
        """Return a request with a fresh lease."""
        return ask(text, lease=self.scheduler.lease(), **fields)

    async def close(self):
        for edge in self._edges:
            edge.close()
            await asyncio.wait([edge.task])


@asynccontextmanager
async def running(*, load=None, also=(), **settings):
    """Run a scheduler and a worker until the block ends.

    Args:
        load: makes engine and model in place of the scripted ones.
        also: other schedulers that the worker keeps a session with.
        settings: of the worker.
    """
    scheduler = Scheduler()
    await scheduler.start()
    defaults = {
        "listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "engine": "scripted",
        "scripted_tokens_per_s": 0.0,
        "worker_id": "worker-1",
        "slots": 4,
        "scheduler_addresses": [f"127.0.0.1:{one.port}" for one in (scheduler, *also)],
    }
    config = Config(**(defaults | settings))
    left, drained = asyncio.Queue(), asyncio.Event()
    worker = WorkerProcess(
        config, load or partial(engines.load, config), leave=left.put_nowait, drained=drained
    )
    ports = await worker.start()
    channel = rpc.channel(f"127.0.0.1:{ports['grpc']}")
    stack = Stack(scheduler, worker, ports, channel, left, drained)
    try:
        if not config.standalone:
            await scheduler.until(lambda s: s.heartbeats)
            # The Welcome may still be on its way, and with it the key of the leases.
            async with asyncio.timeout(LIMIT_S):
                while worker._ready() is not None:
                    await asyncio.sleep(0.005)
        yield stack
    finally:
        await stack.close()
        await channel.close()
        await worker.stop()
        await scheduler.stop()


@pytest.fixture
def run_stack():
    """Return the context manager that runs a scheduler and a worker."""
    return running


@pytest.fixture
async def stack():
    """A scheduler and a worker with four slots that generates as fast as it goes."""
    async with running() as up:
        yield up


@pytest.fixture
async def slow_stack():
    """The same, at 100 tokens a second for each request."""
    async with running(scripted_tokens_per_s=100.0) as up:
        yield up


@pytest.fixture(name="ask")
def _ask():
    """Return the maker of requests with one user message."""
    return ask


@pytest.fixture(scope="module", name="cache")
def _cache(tmp_path_factory):
    """A cache of converted models for a module."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
async def tiny(cache):
    """A scheduler and a worker with the tiny model."""
    config = Config(model=f"tiny={TINY}", cache=str(cache), slots=8, kv_cache_mib=64)
    async with running(load=partial(engines.load, config), slots=8) as up:
        yield up
