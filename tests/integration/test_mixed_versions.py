"""Services of this version and of the previous one work together, whichever comes first."""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from random import SystemRandom
from types import SimpleNamespace

import httpx
import pytest
from previous_protos import PreviousProtos, wire

from auth_service.__main__ import AuthService
from auth_service.config import Config as AuthConfig
from edge.app import Edge
from edge.config import Config as EdgeConfig
from fastrun.service import api_key, rpc
from fastrun.service.streams import DuplexStream, Outbox
from fastrun.v1 import admin_pb2, admin_pb2_grpc
from gpu_worker import engines
from gpu_worker.config import Config as WorkerConfig
from gpu_worker.service import WorkerProcess
from scheduler.__main__ import Scheduler
from scheduler.config import Config as SchedulerConfig

LIMIT_S = 30
HERE = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
PROTOS = PreviousProtos()
MODEL = "scripted"
TOKENS = 20
ASKED = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": TOKENS,
}
DAYS = admin_pb2.AdminServiceQueryUsageRequest(
    first_day=(datetime.now(UTC) - timedelta(1)).date().isoformat(),
    last_day=(datetime.now(UTC) + timedelta(1)).date().isoformat(),
)


class PreviousService:
    """Calls a service by the previous version's messages."""

    def __init__(self, channel, service):
        self._channel = channel
        self._service = service

    def open(self, name, kind="stream_stream"):
        method = PROTOS.methods[f"/fastrun.v1.{self._service}/{name}"]
        return getattr(self._channel, kind)(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )

    def unary(self, name, **fields):
        method = PROTOS.methods[f"/fastrun.v1.{self._service}/{name}"]
        return self.open(name, "unary_unary")(method.request(**fields))


class Session:
    """One long-lived stream; what it hears can be awaited."""

    def __init__(self, service, name, batch, item, hello=None):
        self._item = PROTOS.message(item)
        self._heard = asyncio.Queue()
        self._outbox = Outbox(PROTOS.message(batch))
        self._stream = DuplexStream(
            service.open(name)(),
            self._outbox,
            on_item=self._heard.put_nowait,
            ping=lambda: self._outbox.put(self._item(ping={})),
        )
        self._running = asyncio.create_task(self._stream.run())
        if hello is not None:
            self.say(hello=hello)

    def say(self, **item):
        self._outbox.put(self._item(**item))
        self._stream.wake()

    async def next(self, kind):
        """Return the next item of a kind, passing over all others."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                item = await self._heard.get()
                if item.WhichOneof("item") == kind:
                    return getattr(item, kind)

    async def event(self):
        """Return what a worker tells next."""
        async with asyncio.timeout(LIMIT_S):
            while not (heard := await self._heard.get()).stream_id:
                pass
            return heard.event

    async def end(self):
        self._stream.close()
        await asyncio.wait([self._running])


async def serves(client):
    """Whether the edge can reach all that it needs, and its model."""
    answer = await client.get("/v1/models")
    return answer.status_code == 200 and [each["id"] for each in answer.json()["data"]] == [MODEL]


async def idle(scheduler):
    """Whether no slot is held."""
    asked = PROTOS.message("WatchFleetRequest")()
    async for view in scheduler.open("WatchFleet", "unary_stream")(asked):
        return not any(worker.slots_in_use for worker in view.workers)
    return False


async def until(condition):
    """Wait until an awaited condition holds."""
    async with asyncio.timeout(LIMIT_S):
        while not await condition():
            await asyncio.sleep(0.02)


async def make_key(address):
    """Make an account and a key by the calls of the previous version."""
    async with rpc.channel(address) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        made = await admin.CreateAccount(admin_pb2.CreateAccountRequest(name="alice"))
        await admin.ApproveAccount(admin_pb2.ApproveAccountRequest(account=made.account.account_id))
        key = api_key.generate(SystemRandom())
        await admin.IssueKey(
            admin_pb2.IssueKeyRequest(
                account=made.account.account_id,
                key_sha256=api_key.key_sha256(key),
                prefix=api_key.display_prefix(key),
            )
        )
    return key


@pytest.fixture
async def stack(database, tmp_path):
    """All services of today, with a wire of the previous version between each two."""
    async with AsyncExitStack() as ends:
        wires = SimpleNamespace()
        addresses = {}
        for name in ("auth", "worker_scheduler", "edge_scheduler", "worker"):
            between, addresses[name] = await ends.enter_async_context(wire(PROTOS))
            setattr(wires, name, between)

        auth = AuthService(AuthConfig(database_url=database, pepper="ab" * 32, **HERE))
        ports = await auth.start()
        ends.push_async_callback(auth.stop)
        wires.auth.leads_to(f"127.0.0.1:{ports['grpc']}")

        scheduler = Scheduler(SchedulerConfig(database_url=database, **HERE))
        ports = await scheduler.start()
        ends.push_async_callback(scheduler.stop)
        wires.worker_scheduler.leads_to(f"127.0.0.1:{ports['grpc']}")
        wires.edge_scheduler.leads_to(f"127.0.0.1:{ports['grpc']}")

        config = WorkerConfig(
            engine="scripted",
            scripted_tokens_per_s=200.0,
            slots=2,
            advertise_address=addresses["worker"],
            scheduler_addresses=[addresses["worker_scheduler"]],
            **HERE,
        )
        worker = WorkerProcess(config, partial(engines.load, config), leave=lambda _status: None)
        ports = await worker.start()
        ends.push_async_callback(worker.stop)
        wires.worker.leads_to(f"127.0.0.1:{ports['grpc']}")

        edge = Edge(
            EdgeConfig(
                auth_address=addresses["auth"],
                scheduler_addresses=[addresses["edge_scheduler"]],
                spool=str(tmp_path),
                usage_interval_s=0.02,
                **HERE,
            )
        )
        ports = await edge.start()
        ends.push_async_callback(edge.stop)
        key = await make_key(addresses["auth"])
        client = await ends.enter_async_context(
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{ports['http']}",
                headers={"authorization": f"Bearer {key}"},
                timeout=LIMIT_S,
                trust_env=False,
            )
        )
        await until(partial(serves, client))
        channel = await ends.enter_async_context(rpc.channel(addresses["edge_scheduler"]))
        yield SimpleNamespace(
            wires=wires,
            addresses=addresses,
            client=client,
            scheduler=PreviousService(channel, "SchedulerService"),
        )


async def test_answers_come_and_are_accounted_for(stack):
    """Plain and streamed answers arrive whole, each leaves its usage, and every slot is free."""
    plain = await stack.client.post("/v1/chat/completions", json=ASKED)
    streamed = await stack.client.post("/v1/chat/completions", json={**ASKED, "stream": True})
    assert plain.status_code == streamed.status_code == 200, plain.text + streamed.text
    assert plain.json()["usage"]["completion_tokens"] == TOKENS
    assert streamed.text.endswith("data: [DONE]\n\n")

    async def recorded():
        (account,) = (await admin.QueryUsage(DAYS)).sums or [None]
        return account is not None and account.requests == 2

    async with rpc.channel(stack.addresses["auth"]) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        await until(recorded)
        (account,) = (await admin.QueryUsage(DAYS)).sums
    assert (account.completion_tokens, account.lost_requests) == (2 * TOKENS, 0)
    await until(partial(idle, stack.scheduler))
    assert stack.wires.worker.carried == {"Attach"}
    assert stack.wires.worker_scheduler.carried == {"WorkerSession"}
    assert stack.wires.edge_scheduler.carried >= {"EdgeSession", "WatchFleet"}
    assert stack.wires.auth.carried >= {"VerifyKey", "WatchKeys", "RecordUsage"}


async def test_a_client_that_leaves_frees_its_slot(stack):
    """What a client no longer reads is aborted over the same messages."""
    asked = {**ASKED, "stream": True, "max_tokens": None}
    async with stack.client.stream("POST", "/v1/chat/completions", json=asked) as answer:
        lines = answer.aiter_lines()  # it hangs up when nobody holds it
        assert await anext(lines)
        assert not await idle(stack.scheduler)
    await until(partial(idle, stack.scheduler))


async def test_an_edge_of_the_previous_version(stack):
    """It gets a slot, runs a request at a worker of today, and the slot is free again."""
    hello = {"edge_id": "edge-old", "term": 0}
    edge = Session(stack.scheduler, "EdgeSession", "EdgeMessages", "EdgeMessage", hello)
    term = (await edge.next("welcome")).term
    edge.say(hello={**hello, "term": term})
    edge.say(
        acquire={
            "request_id": "r",
            "account_id": "acc",
            "model": MODEL,
            "queue_timeout_ms": 10_000,
            "token_estimate": 20,
            "prompt_tokens": 10,
        }
    )
    granted = await edge.next("granted")
    async with rpc.channel(granted.address) as channel:
        worker = PreviousService(channel, "WorkerService")
        attach = Session(worker, "Attach", "EdgeFrame", "EdgeFrameItem")
        request = {
            "request_id": "r",
            "model": MODEL,
            "lease": granted.lease,
            "messages": [{"role": "ROLE_USER", "content": "hello"}],
            "sampling": {"max_tokens": TOKENS, "temperature": 0, "seed": 1},
        }
        attach.say(start={"stream_id": 1, "request": request})
        told = [await attach.event()]
        while told[-1].WhichOneof("event") not in ("finished", "failed"):
            told.append(await attach.event())
        kinds = [event.WhichOneof("event") for event in told]
        assert (kinds[0], kinds[-1]) == ("accepted", "finished")
        assert set(kinds[1:-1]) == {"delta"}
        assert sum(len(event.delta.token_ids) for event in told) == TOKENS
        assert told[-1].finished.usage.completion_tokens == TOKENS
        await until(partial(idle, stack.scheduler))
        await attach.end()
    await edge.end()


async def test_a_worker_of_the_previous_version(stack):
    """A scheduler of today gives its slot to an edge, and takes it back when it says so."""
    hello = {
        "worker_id": "worker-old",
        "instance_id": "old-1",
        "address": "127.0.0.1:1",
        "model": {"model": "old", "context_length": 256, "longest_token_bytes": 8},
        "slots": 1,
        "term": 0,
    }
    worker = Session(stack.scheduler, "WorkerSession", "WorkerReports", "WorkerReport", hello)
    welcome = await worker.next("welcome")
    worker.say(hello={**hello, "term": welcome.term})
    worker.say(heartbeat={"state": "WORKER_STATE_SERVING", "kv_blocks_total": 10})
    said = {"edge_id": "edge-old", "term": 0}
    edge = Session(stack.scheduler, "EdgeSession", "EdgeMessages", "EdgeMessage", said)
    edge.say(hello={**said, "term": (await edge.next("welcome")).term})
    for number in (1, 2):
        acquire = {"request_id": f"r{number}", "account_id": "acc", "model": "old"}
        edge.say(acquire={**acquire, "queue_timeout_ms": 20_000})
    first = await edge.next("granted")
    assert (first.request_id, first.instance_id) == ("r1", "old-1")
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    worker.say(heartbeat={"state": "WORKER_STATE_SERVING", "running_lease_ids": [first.lease_id]})
    worker.say(slot_freed={"lease_id": first.lease_id, "usage": usage, "request_id": "r1"})
    assert (await edge.next("granted")).request_id == "r2"
    find = stack.scheduler.unary("FindUsage", request_ids=["r1"])
    (known,) = (await find).generations
    assert (known.worker_id, known.usage.completion_tokens) == ("worker-old", 2)
    for session in (edge, worker):
        await session.end()
