"""A small stack of real services within one process, and what it shows of itself, for tests."""

import asyncio
from contextlib import asynccontextmanager
from random import SystemRandom

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from auth_service.__main__ import AuthService
from auth_service.config import Config as AuthConfig
from edge.app import Edge
from edge.config import Config as EdgeConfig
from edge.usage_lines import Closed, Ending, Status, encode
from fastrun.service import api_key, rpc
from fastrun.service.streams import DuplexStream, Outbox
from fastrun.v1 import admin_pb2, admin_pb2_grpc
from fastrun.v1.scheduler_pb2 import DrainWorkerRequest, EdgeMessage, EdgeMessages
from fastrun.v1.scheduler_pb2_grpc import SchedulerServiceStub
from fastrun.v1.worker_pb2 import Ping
from gpu_worker import engines
from gpu_worker.config import Config as WorkerConfig
from gpu_worker.engine.scripted import ScriptedEngine
from gpu_worker.service import WorkerProcess
from scheduler.__main__ import Scheduler
from scheduler.config import Config as SchedulerConfig

HERE = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
LIMIT_S = 60


class Engine(ScriptedEngine):
    """Has a cache and blocks, as engines that compute have, and runs one request at a time."""

    def __init__(self):
        super().__init__(slots=1, context_length=8192, seconds_per_token=0.01)
        self.preemptions = 0

    async def generate(self, token_ids, sampling, *, take, **fields):
        def with_cached(step):
            return take(msgspec.structs.replace(step, cached_tokens=1))

        await super().generate(token_ids, sampling, take=with_cached, **fields)

    def stats(self):
        stats = super().stats()
        return msgspec.structs.replace(
            stats,
            kv_blocks_used=stats.running,
            kv_blocks_total=8,
            preemptions=self.preemptions,
        )


class Stack:
    """An edge, an auth service, a scheduler and two workers, and what they show."""

    def __init__(self, database, spool):
        self.database = database
        self.spool = spool
        self.admin_ports = {}
        self.engines = {}
        self.moved = set()
        self.scheduler = None
        self.client = httpx.AsyncClient(timeout=LIMIT_S)

    async def start(self, exits):
        exits.push_async_callback(self.client.aclose)
        auth = await self.run(
            exits,
            "auth",
            AuthService(AuthConfig(**HERE, database_url=self.database, pepper="ab" * 32)),
        )
        settings = {"warm_up_s": 0.0, "drift_after_s": 0.1, "breaker_failures": 1}
        scheduler = await self.run(
            exits, "scheduler", Scheduler(SchedulerConfig(**HERE, queue_per_slot=0.25, **settings))
        )
        for name in ("w1", "w2"):
            await self.run(exits, name, self.worker(name, scheduler))
        edge = await self.run(
            exits,
            "edge",
            Edge(
                EdgeConfig(
                    **HERE,
                    auth_address=f"127.0.0.1:{auth['grpc']}",
                    scheduler_addresses=[f"127.0.0.1:{scheduler['grpc']}"],
                    spool=str(self.spool),
                    usage_interval_s=0.05,
                )
            ),
        )
        self.client.base_url = f"http://127.0.0.1:{edge['http']}"
        self.scheduler = rpc.channel(f"127.0.0.1:{scheduler['grpc']}")
        exits.push_async_callback(self.scheduler.close)
        async with rpc.channel(f"127.0.0.1:{auth['grpc']}") as channel:
            key = await issue(admin_pb2_grpc.AdminServiceStub(channel))
        self.client.headers["authorization"] = f"Bearer {key}"

    async def run(self, exits, name, service):
        ports = await service.start()
        exits.push_async_callback(service.stop)
        self.admin_ports[name] = ports["admin"]
        return ports

    def worker(self, name, scheduler):
        config = WorkerConfig(
            **HERE,
            engine="scripted",
            slots=2,
            worker_id=name,
            scheduler_addresses=[f"127.0.0.1:{scheduler['grpc']}"],
        )
        self.engines[name] = Engine()

        async def load():
            _, model = await engines.load(config)
            return self.engines[name], model

        return WorkerProcess(config, load, leave=lambda _status: None)

    async def read(self, *services):
        """What is shown now, by name, added up over labels and services."""
        totals = {}
        for service in services or self.admin_ports:
            url = f"http://127.0.0.1:{self.admin_ports[service]}/metrics"
            text = (await self.client.get(url)).text
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    totals[sample.name] = totals.get(sample.name, 0) + sample.value
        return totals

    @asynccontextmanager
    async def moves(self, *names):
        """What the block does changes these metrics."""
        before = await self.read()
        yield
        await self.moved_since(before, *names)

    async def moved_since(self, before, *names):
        """Wait until these show something else: of a histogram, how often it was observed."""
        left = set(names)
        for _ in range(LIMIT_S * 20):
            now = await self.read()
            for name in tuple(left):
                shown = f"{name}_count" if f"{name}_count" in now else name
                if now.get(shown, 0) != before.get(shown, 0):
                    left.remove(name)
            if not left:
                break
            await asyncio.sleep(0.05)
        assert not left, f"{sorted(left)} did not move"
        self.moved |= set(names)

    async def ask(self, text, **fields):
        body = {"model": "scripted", "messages": [{"role": "user", "content": text}]}
        return await self.client.post("/v1/chat/completions", json={**body, **fields})

    @asynccontextmanager
    async def streaming(self, count, text="go on"):
        """So many answers run, or wait, until the end of the block."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.ask(text, stream=True)) for _ in range(count)]
            yield
            for task in tasks:
                task.cancel()

    async def drain_busy(self):
        """Take a worker away that runs something."""
        busy = [
            name
            for name in self.engines
            if (await self.read(name))["fastrun_worker_slots_in_use"] > 0
        ]
        await SchedulerServiceStub(self.scheduler).DrainWorker(
            DrainWorkerRequest(worker_id=busy[0], deadline_ms=0)
        )

    @asynccontextmanager
    async def grant_that_nobody_starts(self):
        """A slot is granted to an edge that does nothing with it."""
        outbox, granted = Outbox(EdgeMessages), asyncio.Event()

        def on_item(item):
            if item.HasField("welcome"):
                outbox.put(EdgeMessage(hello={"edge_id": "idle", "term": item.welcome.term}))
                ask = {"request_id": "idle", "account_id": "a", "model": "scripted"}
                outbox.put(EdgeMessage(acquire={**ask, "queue_timeout_ms": 9000}))
                stream.wake()
            elif item.HasField("granted"):
                granted.set()

        stream = DuplexStream(
            SchedulerServiceStub(self.scheduler).EdgeSession(),
            outbox,
            on_item=on_item,
            ping=lambda: outbox.put(EdgeMessage(ping=Ping())),
        )
        running = asyncio.create_task(stream.run())
        outbox.put(EdgeMessage(hello={"edge_id": "idle"}))
        stream.wake()
        await asyncio.wait_for(granted.wait(), LIMIT_S)
        yield
        stream.close()
        await running

    def leave_spoiled_spool(self):
        """A dead edge has left a line that is torn, and a record that the auth service refuses."""
        record = Closed(
            request_id="left",
            account_id="",
            key_id="k",
            model="scripted",
            started_at=1.0,
            ending=Ending(status=Status.COMPLETED),
        )
        (self.spool / "dead.00000001.log").write_bytes(encode(record) + b"torn\n")


async def issue(admin):
    """Make an account that may call, and return a key of it."""
    await admin.CreateAccount(admin_pb2.CreateAccountRequest(name="demo"))
    await admin.ApproveAccount(admin_pb2.ApproveAccountRequest(account="demo"))
    key = api_key.generate(SystemRandom())
    await admin.IssueKey(
        admin_pb2.IssueKeyRequest(
            account="demo",
            key_sha256=api_key.key_sha256(key),
            prefix=api_key.display_prefix(key),
        )
    )
    return key
