"""Limits over real sockets: clients, two edges, a worker, a scheduler whose clock tests move."""

import asyncio
import random
from contextlib import AsyncExitStack
from functools import partial

import httpx
import pytest

from edge.app import Edge
from edge.config import Config as EdgeConfig
from fastrun.service import api_key, rpc
from fastrun.service.errors import ServiceError
from fastrun.service.rpc import RpcServer
from fastrun.v1 import auth_pb2, auth_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc
from fastrun.v1.auth_pb2 import AccountState, KeyState, VerifyKeyResponse
from fastrun.v1.error_pb2 import ErrorReason
from gpu_worker import engines
from gpu_worker.config import Config as WorkerConfig
from gpu_worker.service import WorkerProcess
from scheduler.__main__ import Scheduler
from scheduler.config import Config as SchedulerConfig
from scheduler.leases import LeaseBook

LIMIT_S = 60
HERE = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
PARALLEL = 50


class Auth(auth_pb2_grpc.AuthServiceServicer):
    """Knows the keys that were issued."""

    def __init__(self):
        self.known = {}

    def issue(self, **limits):
        """Make the key of a new account with limits."""
        key, name = api_key.generate(random.SystemRandom()), f"a{len(self.known)}"
        self.known[api_key.key_sha256(key)] = VerifyKeyResponse(
            account_id=name,
            key_id=f"key_{name}",
            account_state=AccountState.ACCOUNT_STATE_APPROVED,
            key_state=KeyState.KEY_STATE_ACTIVE,
            account_limits=auth_pb2.Limits(**limits),
        )
        return key

    async def VerifyKey(self, request, context):
        if request.key_sha256 not in self.known:
            raise ServiceError(ErrorReason.ERROR_REASON_NOT_FOUND, "no such key")
        return self.known[request.key_sha256]

    async def RecordUsage(self, request, context):
        return auth_pb2.RecordUsageResponse(recorded=len(request.records))


class Stack:
    """All that is started, and how to ask for something."""

    def __init__(self, spool):
        self.spool = spool
        self.auth = Auth()
        self.now = 1000.0
        self.scheduler = None
        self.urls = []
        self.clients = []

    def clock(self):
        """What the scheduler takes for the time."""
        return self.now

    async def start(self, exits, **worker):
        server = RpcServer()
        server.add(
            auth_pb2.DESCRIPTOR.services_by_name["AuthService"],
            auth_pb2_grpc.add_AuthServiceServicer_to_server,
            self.auth,
        )
        auth_port = await server.start("127.0.0.1:0")
        exits.push_async_callback(server.stop, 0)
        scheduler = Scheduler(SchedulerConfig(**HERE, warm_up_s=0.0), clock=self.clock)
        ports = await scheduler.start()
        exits.push_async_callback(scheduler.stop)
        self.scheduler = f"127.0.0.1:{ports['grpc']}"
        config = WorkerConfig(
            **HERE, engine="scripted", scheduler_addresses=[self.scheduler], **worker
        )
        process = WorkerProcess(config, partial(engines.load, config), leave=print)
        await process.start()
        exits.push_async_callback(process.stop)
        for _ in range(2):
            edge = Edge(
                EdgeConfig(
                    **HERE,
                    auth_address=f"127.0.0.1:{auth_port}",
                    scheduler_addresses=[self.scheduler],
                    spool=str(self.spool),
                )
            )
            http_port = (await edge.start())["http"]
            exits.push_async_callback(edge.stop)
            self.urls.append(f"http://127.0.0.1:{http_port}")
            self.clients.append(
                await exits.enter_async_context(
                    httpx.AsyncClient(base_url=self.urls[-1], timeout=LIMIT_S)
                )
            )
        await self.ready()

    async def ready(self):
        key = self.auth.issue()
        async with asyncio.timeout(LIMIT_S):
            for number in range(2):
                while (await self.ask(key, number)).status_code != httpx.codes.OK:
                    await asyncio.sleep(0.05)

    async def ask(self, key, number, **fields):
        """Ask one of the edges for a few tokens."""
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
        return await self.clients[number % 2].post(
            "/v1/chat/completions",
            json={"max_tokens": 1, **body, **fields},
            headers={"authorization": f"Bearer {key}"},
        )

    async def ask_all(self, key, count, pause_s=0.0):
        """Ask so often, PARALLEL at a time, the clock moving on by a pause each time."""
        numbers, answers = iter(range(count)), []

        async def client():
            for number in numbers:
                self.now += pause_s
                answers.append(await self.ask(key, number))

        await asyncio.gather(*(client() for _ in range(PARALLEL)))
        return answers


@pytest.fixture
def start(tmp_path):
    """How to start all of it, for as long as the given stack of exits lasts."""

    async def make(exits, **worker):
        stack = Stack(tmp_path / "spool")
        await stack.start(exits, **worker)
        return stack

    return make


def passed(answers):
    """Count those that passed; all others are refused with a time to come back."""
    refused = [each for each in answers if each.status_code != httpx.codes.OK]
    for answer in refused:
        assert answer.status_code == httpx.codes.TOO_MANY_REQUESTS, answer.text
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(answer.headers["retry-after"]) <= 61
    return len(answers) - len(refused)


@pytest.fixture
def grants(monkeypatch):
    """How many leases were held after each grant."""
    held, grant = [], LeaseBook.grant

    def counting(book, lease, *, slots):
        grant(book, lease, slots=slots)
        held.append((lease.held_since, len(book)))

    monkeypatch.setattr(LeaseBook, "grant", counting)
    return held


async def test_a_thousand_at_a_hundred_per_minute(start, grants):
    """Of 1,000 requests in 100 s at 100 per minute, 100 pass in the first 60 s and in the next."""
    async with AsyncExitStack() as exits:
        stack = await start(exits, scripted_tokens_per_s=0.0, slots=32)
        key = stack.auth.issue(requests_per_minute=100)
        grants.clear()
        answers = await stack.ask_all(key, 1000, pause_s=0.1)
        assert passed(answers) == len(grants) == 200
        times = [at for at, _ in grants]
        in_a_minute = [sum(first <= at < first + 60.0 for at in times) for first in times]
        assert in_a_minute[0] == in_a_minute[100] == max(in_a_minute) == 100
        assert {each.headers["x-ratelimit-limit-requests"] for each in answers} == {"100"}
        refused = next(each for each in answers if each.status_code != httpx.codes.OK)
        message = "requests per minute limit of 100 reached"
        assert refused.json()["error"]["message"] == message
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert passed(await stack.ask_all(stack.auth.issue(requests_per_minute=1), 1)) == 1


async def test_fifty_at_ten_at_once(start, grants):
    """Of 50 parallel requests at 10 concurrent ones, over 2 edges, never more than 10 run."""
    async with AsyncExitStack() as exits:
        stack = await start(exits, scripted_tokens_per_s=50.0, slots=32)
        key = stack.auth.issue(concurrent_requests=10)
        grants.clear()

        async def client(number):
            while passed([await stack.ask(key, number, max_tokens=10)]) == 0:
                await asyncio.sleep(0.02)

        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(client(number) for number in range(PARALLEL)))
        assert len(grants) == PARALLEL
        assert max(held for _, held in grants) == 10


async def test_tokens_are_settled(start):
    """What a request did not use of what it might have is there again when it has ended."""
    async with AsyncExitStack() as exits:
        stack = await start(exits, scripted_tokens_per_s=0.0, slots=4)
        key = stack.auth.issue(tokens_per_minute=2000)
        first = await stack.ask(key, 0, max_tokens=1000)
        used = first.json()["usage"]["total_tokens"]
        assert int(first.headers["x-ratelimit-remaining-tokens"]) < 1000
        second = await stack.ask(key, 0, max_tokens=1, stream=True)
        reserved = 2000 - used - int(second.headers["x-ratelimit-remaining-tokens"])
        assert 0 < reserved < 100


async def test_usage_can_be_asked_for(start):
    """An edge that knows nothing but a request's id learns what it used, and of many at once not."""
    async with AsyncExitStack() as exits:
        stack = await start(exits, scripted_tokens_per_s=0.0, slots=4)
        answer = await stack.ask(stack.auth.issue(), 0, n=2)
        request_id = answer.json()["id"].removeprefix("chatcmpl-")
        async with rpc.channel(stack.scheduler) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            wanted = scheduler_pb2.FindUsageRequest(request_ids=[request_id, "unknown"])
            async with asyncio.timeout(LIMIT_S):
                while len((found := await stub.FindUsage(wanted)).generations) < 2:
                    await asyncio.sleep(0.01)
            assert {each.generation for each in found.generations} == {0, 1}
            assert not found.running_request_ids
            told = answer.json()["usage"]
            for each in found.generations:
                assert each.usage.prompt_tokens == told["prompt_tokens"]
            completion = sum(each.usage.completion_tokens for each in found.generations)
            assert completion == told["completion_tokens"]
            many = scheduler_pb2.FindUsageRequest(request_ids=["r"] * 1001)
            with pytest.raises(Exception, match="at most 1000"):
                await stub.FindUsage(many)
