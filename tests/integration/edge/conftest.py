"""A real edge between real sockets: scripted scheduler, worker and auth service over gRPC."""

import asyncio
import contextlib
import itertools
import random
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace

import httpx
import pytest

from edge.app import Edge
from edge.config import Config
from fastrun.service import api_key
from fastrun.service.errors import ServiceError
from fastrun.service.rpc import RpcServer
from fastrun.service.streams import DuplexStream, Outbox
from fastrun.v1 import (
    auth_pb2,
    auth_pb2_grpc,
    scheduler_pb2,
    scheduler_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from fastrun.v1.auth_pb2 import AccountState, KeyState, VerifyKeyResponse
from fastrun.v1.error_pb2 import ErrorDetail, ErrorReason
from fastrun.v1.generation_pb2 import FinishReason, GenerateEvent, Usage
from fastrun.v1.scheduler_pb2 import EdgeReplies, EdgeReply, ModelList, ModelState
from fastrun.v1.worker_pb2 import ModelCard, Ping, StreamEvent, WorkerFrame

MODEL = "test/model"
PROMPT_TOKENS, CACHED_TOKENS = 11, 4


class ScriptedAuth(auth_pb2_grpc.AuthServiceServicer):
    """Knows the keys it was told of, and tells watchers what is changed by change()."""

    def __init__(self):
        self.events = []
        self.watched_after = []
        self.hushed = None
        self.watchable = asyncio.Event()
        self.watchable.set()
        self.happened = asyncio.Condition()
        self.on_read = None
        self.known = {}
        self.asked = 0
        self.recorded = {}
        self.takes_usage = True
        self.queries = []
        self.sums = []
        self.is_down = False
        self.frozen = None

    def issue(self, **fields):
        """Make a key that may call, unless ``fields`` say otherwise."""
        key = api_key.generate(random.SystemRandom())
        known = {
            "account_id": "acc_1",
            "key_id": f"key_{len(self.known)}",
            "account_state": AccountState.ACCOUNT_STATE_APPROVED,
            "key_state": KeyState.KEY_STATE_ACTIVE,
            "cache_salt": "salt_1",
        }
        self.known[api_key.key_sha256(key)] = VerifyKeyResponse(**{**known, **fields})
        return key

    async def change(self, key, **fields):
        """Change what is known of a key, with an event about it."""
        known = self.known[api_key.key_sha256(key)]
        known.MergeFrom(VerifyKeyResponse(**fields))
        event = auth_pb2.KeyEvent(
            sequence=len(self.events) + 1,
            account_id=known.account_id,
            key_id=known.key_id,
            account_state=known.account_state,
            key_state=known.key_state,
        )
        async with self.happened:
            self.events.append(event)
            self.happened.notify_all()

    async def go_down(self):
        """Lose Postgres."""
        self.is_down = True
        await self.cut_watch()

    async def cut_watch(self):
        """End all watches, and refuse new ones."""
        async with self.happened:
            self.watchable.clear()
            self.happened.notify_all()

    async def WatchKeys(self, request, context):
        if not self.watchable.is_set():
            raise ServiceError(ErrorReason.ERROR_REASON_UNAVAILABLE, "no Postgres")
        told = request.after_sequence
        self.watched_after.append(told)
        if not told:
            told = len(self.events)
            yield auth_pb2.WatchKeysResponse(reset=auth_pb2.Reset(sequence=told))
        while self.watchable.is_set():
            if self.hushed is not None:
                await self.hushed.wait()
            news = self.events[told:]
            told += len(news)
            if news:
                yield auth_pb2.WatchKeysResponse(events=auth_pb2.KeyEvents(events=news))
            yield auth_pb2.WatchKeysResponse(confirmed=auth_pb2.Confirmed(sequence=told))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5), self.happened:
                    await self.happened.wait_for(
                        lambda: len(self.events) > told or not self.watchable.is_set()  # noqa: B023 - this round's
                    )
        raise ServiceError(ErrorReason.ERROR_REASON_UNAVAILABLE, "no Postgres")

    async def VerifyKey(self, request, context):
        self.asked += 1
        if self.frozen is not None:
            await self.frozen.wait()
        if self.is_down:
            raise ServiceError(ErrorReason.ERROR_REASON_UNAVAILABLE, "no Postgres")
        known = self.known.get(request.key_sha256)
        if known is None:
            raise ServiceError(ErrorReason.ERROR_REASON_NOT_FOUND, "no such key")
        answer = VerifyKeyResponse()
        answer.CopyFrom(known)
        answer.sequence = len(self.events)
        if self.on_read is not None:
            await self.on_read()
        return answer

    async def RecordUsage(self, request, context):
        if not self.takes_usage:
            raise ServiceError(ErrorReason.ERROR_REASON_UNAVAILABLE, "no Postgres")
        for record in request.records:
            self.recorded.setdefault(record.request_id, record)
        return auth_pb2.RecordUsageResponse()

    async def QueryUsage(self, request, context):
        self.queries.append(request)
        if not self.takes_usage:
            raise ServiceError(ErrorReason.ERROR_REASON_UNAVAILABLE, "no Postgres")
        return auth_pb2.QueryUsageResponse(sums=self.sums)


class ScriptedScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Grants at once to the worker that ``choose`` names; tests may change that and see all."""

    def __init__(self, term=1):
        self.term = term
        self.sessions = []
        self.hellos = []
        self.hellos_again = []
        """Those that answer a Welcome of a higher term."""
        self.acquires = []
        self.cancels = []
        self.releases = []
        self.is_hushed = False
        self.losts = []
        self.lost_by_refusal = 0
        self.faults = []
        self.workers = []
        self.models = ModelList(models=[model_state()], complete=True)
        self.on_acquire = self.grant
        self.usages = {}
        self.running = set()
        self.changed = asyncio.Condition()
        self._lease_ids = itertools.count(1)

    async def EdgeSession(self, request_iterator, context):
        outbox = Outbox(EdgeReplies)

        def on_item(item):
            kind = item.WhichOneof("item")
            if kind == "hello" and (outbox, stream) in self.sessions:
                self.hellos_again.append(item.hello)
            elif kind == "hello":
                self.hellos.append(item.hello)
                self.sessions.append((outbox, stream))
                self.welcome()
            elif kind == "acquire":
                self.acquires.append(item.acquire)
                self.on_acquire(item.acquire)
            elif kind == "cancel":
                self.cancels.append(item.cancel.request_id)
            elif kind == "release":
                self.releases.append(item.release.lease_id)
            elif kind == "lease_lost":
                self.losts.append(item.lease_lost.lease_id)
                self.lost_by_refusal += item.lease_lost.refused
            elif kind == "worker_failed":
                self.faults.append(item.worker_failed.instance_id)

        stream = DuplexStream(
            context,
            outbox,
            on_item=on_item,
            ping=lambda: outbox.put(EdgeReply(ping=Ping())),
        )
        await stream.run()

    async def FindUsage(self, request, context):
        return scheduler_pb2.FindUsageResponse(
            generations=[
                each for name in request.request_ids for each in self.usages.get(name, ())
            ],
            running_request_ids=self.running & set(request.request_ids),
        )

    def send(self, **item):
        outbox, stream = self.sessions[-1]
        outbox.put(EdgeReply(**item))
        stream.wake()

    def welcome(self):
        if self.is_hushed:
            return
        self.send(welcome=scheduler_pb2.EdgeWelcome(term=self.term))
        self.send(models=self.models)

    def grant(self, acquire):
        worker = next(
            (
                each
                for each in self.workers
                if not {each.worker_id, each.instance_id} & set(acquire.excluded_worker_ids)
            ),
            None,
        )
        if worker is None:
            self.reject(acquire, ErrorReason.ERROR_REASON_NO_WORKER)
            return
        for generation in acquire.generations or (0,):
            self.grant_one(acquire, generation, worker)

    def grant_one(self, acquire, generation, worker):
        lease_id = f"lease_{next(self._lease_ids)}"
        self.send(
            granted=scheduler_pb2.Granted(
                request_id=acquire.request_id,
                generation=generation,
                lease_id=lease_id,
                lease=f"signed {lease_id}".encode(),
                worker_id=worker.worker_id,
                instance_id=worker.instance_id,
                address=worker.address,
            )
        )

    def reject(self, acquire, reason, retry_after_ms=None, message="refused"):
        error = ErrorDetail(reason=reason, message=message, retry_after_ms=retry_after_ms)
        rejected = scheduler_pb2.Rejected(
            request_id=acquire.request_id, error=error, generations=acquire.generations
        )
        self.send(rejected=rejected)

    def queue(self, acquire):
        """Neither grant nor reject."""

    def drop_sessions(self):
        for _, stream in self.sessions:
            stream.close()
        self.sessions.clear()


class Run:
    """One generation on a scripted worker."""

    def __init__(self, worker, attach, start):
        self.worker = worker
        self.stream_id = start.stream_id
        self.request = start.request
        self.attach = attach
        self.aborted = asyncio.Event()
        self.tokens = len(start.request.resume_token_ids)

    def send(self, **event):
        outbox, stream = self.attach
        outbox.put(StreamEvent(stream_id=self.stream_id, event=GenerateEvent(**event)))
        stream.wake()

    def accept(self, *, prompt_tokens=PROMPT_TOKENS, resumable=False):
        self.send(accepted={"prompt_tokens": prompt_tokens, "resumable": resumable})

    def delta(self, text):
        self.tokens += 1
        self.send(delta={"content": text, "token_ids": [self.tokens]})

    def finish(self, reason=FinishReason.FINISH_REASON_STOP):
        usage = Usage(
            prompt_tokens=PROMPT_TOKENS,
            cached_tokens=CACHED_TOKENS,
            completion_tokens=self.tokens,
        )
        self.send(finished={"reason": reason, "usage": usage})

    def fail(self, reason, message="failed"):
        self.send(failed={"error": {"reason": reason, "message": message}})

    def drop(self):
        """Lose the way to the edge, a little after what was said has reached it."""
        asyncio.get_running_loop().call_later(0.05, self.worker.drop_attaches)

    def answer(self, *texts):
        self.accept()
        for text in texts:
            self.delta(text)
        self.finish()


class ScriptedWorker(worker_pb2_grpc.WorkerServiceServicer):
    """Does with each generation what ``script`` says."""

    def __init__(self, worker_id):
        self.worker_id = worker_id
        self.instance_id = f"{worker_id}_instance"
        self.address = None
        self.runs = []
        self.attaches = []
        self.script = lambda run: run.answer("Hello", ", ", "wörld 😀", "!")
        self.answers_aborts = True

    async def Attach(self, request_iterator, context):
        outbox = Outbox(WorkerFrame)

        def on_item(item):
            kind = item.WhichOneof("item")
            if kind == "start":
                run = Run(self, (outbox, stream), item.start)
                self.runs.append(run)
                self.script(run)
            elif kind == "abort":
                run = next(each for each in self.runs if each.stream_id == item.abort.stream_id)
                run.aborted.set()
                if self.answers_aborts:
                    run.finish(FinishReason.FINISH_REASON_ABORTED)

        stream = DuplexStream(
            context, outbox, on_item=on_item, ping=lambda: outbox.put(StreamEvent())
        )
        self.attaches.append(stream)
        await stream.run()

    def drop_attaches(self):
        for stream in self.attaches:
            stream.close()
        self.attaches.clear()


def model_state(**card):
    fields = {
        "model": MODEL,
        "context_length": 1000,
        "longest_token_bytes": 10,
        "created": 1,
        "features": ["tools"],
    }
    return ModelState(card=ModelCard(**{**fields, **card}), ready=True)


@asynccontextmanager
async def serving(module, name, register, servicer):
    server = RpcServer()
    server.add(module.DESCRIPTOR.services_by_name[name], register, servicer)
    port = await server.start("127.0.0.1:0")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@asynccontextmanager
async def running(workers=1, schedulers=1, **settings):
    """Start everything, with an edge that is ready."""
    async with AsyncExitStack() as stack:
        auth = ScriptedAuth()
        auth_address = await stack.enter_async_context(
            serving(auth_pb2, "AuthService", auth_pb2_grpc.add_AuthServiceServicer_to_server, auth)
        )
        fleet = [ScriptedWorker(f"worker_{number}") for number in range(workers)]
        for worker in fleet:
            worker.address = await stack.enter_async_context(
                serving(
                    worker_pb2,
                    "WorkerService",
                    worker_pb2_grpc.add_WorkerServiceServicer_to_server,
                    worker,
                )
            )
        leads, addresses = [], []
        for number in range(schedulers):
            scheduler = ScriptedScheduler(term=schedulers - number)
            scheduler.workers = fleet
            leads.append(scheduler)
            addresses.append(
                await stack.enter_async_context(
                    serving(
                        scheduler_pb2,
                        "SchedulerService",
                        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server,
                        scheduler,
                    )
                )
            )
        spool = stack.enter_context(tempfile.TemporaryDirectory())
        config = Config(
            listen="127.0.0.1:0",
            admin_listen="127.0.0.1:0",
            auth_address=auth_address,
            scheduler_addresses=addresses,
            **{"spool": spool, "usage_interval_s": 0.02, **settings},
        )
        edge = Edge(config)
        ports = await edge.start()
        stack.push_async_callback(edge.stop)
        key = auth.issue()
        client = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{ports['http']}",
                headers={"authorization": f"Bearer {key}"},
                timeout=30,
            )
        )
        await until(lambda: edge._why_not_ready() is None)
        yield SimpleNamespace(
            edge=edge,
            auth=auth,
            scheduler=leads[0],
            schedulers=leads,
            worker=fleet[0],
            workers=fleet,
            client=client,
            key=key,
            port=ports["http"],
            admin_port=ports["admin"],
        )


async def until(condition, timeout_s=10):
    """Wait for a condition that some task will make true."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


def chat_body(**fields):
    return {"model": MODEL, "messages": [{"role": "user", "content": "Say hi."}], **fields}


@pytest.fixture
def start():
    """Starts an edge and what is around it: an async context manager that takes settings."""
    return running


@pytest.fixture
def body():
    """Makes the body of a chat completion."""
    return chat_body


@pytest.fixture(name="until")
def until_fixture():
    """Waits for a condition."""
    return until
