"""Workers that are killed under load cost their streams a pause, and nothing else.

As it was done before a release:

    FASTRUN_TEST_KILLS=50 pytest -s tests/chaos/test_worker_kills.py
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass

import aiohttp
import pytest
from metering import Books
from stacks import TINY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

KILLS = int(os.environ.get("FASTRUN_TEST_KILLS", "2"))
STREAMS = 32
TOKENS = 120


@dataclass
class Answer:
    """What a client sees of one request, while it comes."""

    status: int = 0
    request_id: str = ""
    text: str = ""
    usage: dict | None = None
    error: str = ""
    is_whole: bool = False
    longest_pause_s: float = 0.0

    @property
    def has_begun(self):
        return bool(self.text or self.error or self.is_whole)

    def outcome(self):
        return "whole" if self.is_whole else f"{self.status} {self.error}"


class Client:
    """Asks a stack, and reads answers as they come."""

    def __init__(self, up):
        self._model = up.ready["model"]
        self._url = f"{up.base_url}/chat/completions"
        self._session = aiohttp.ClientSession(
            headers={"authorization": f"Bearer {up.ready['api_key']}"},
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=120),
        )
        self.answers = []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self._session.close()

    def begin(self, text, **fields):
        """Ask; the answer grows while its task runs."""
        answer = Answer()
        self.answers.append(answer)
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        return answer, asyncio.create_task(self._read(answer, body))

    async def _read(self, answer, body):
        async with self._session.post(self._url, json=body) as response:
            answer.status, answer.request_id = response.status, response.headers["x-request-id"]
            if response.status != 200:
                answer.error = (await response.json())["error"]["message"]
                return
            if not body["stream"]:
                told = await response.json()
                answer.text = told["choices"][0]["message"]["content"]
                answer.usage, answer.is_whole = told["usage"], True
                return
            at = None
            async for line in response.content:
                if line.startswith(b"data: "):
                    now = time.monotonic()
                    if at is not None:
                        answer.longest_pause_s = max(answer.longest_pause_s, now - at)
                    at = now
                    _take(answer, line.removeprefix(b"data: "))


def _take(answer, data):
    if data.strip() == b"[DONE]":
        answer.is_whole = True
        return
    event = json.loads(data)
    if "error" in event:
        answer.error = event["error"]["message"]
    elif event["choices"]:
        answer.text += event["choices"][0]["delta"].get("content", "")
    else:
        answer.usage = event["usage"]


def workers(machine):
    return {pid for pid, line in machine.processes().items() if "-m gpu_worker" in line}


async def serving(up, count):
    """Wait until so many workers are there; one that has failed is passed over for a while."""
    async with asyncio.timeout(60):
        while True:
            fleet = await asyncio.to_thread(up.fleet)
            states = [worker.state for worker in fleet.workers]
            if sum(state in ("serving", "failing") for state in states) >= count:
                return
            await asyncio.sleep(0.1)


async def ask_all(client, bodies):
    """Ask all at once; return their answers and tasks when each has begun."""
    begun = [client.begin(**body) for body in bodies]
    async with asyncio.timeout(60):
        while not all(answer.has_begun for answer, _ in begun):
            await asyncio.sleep(0.01)
    return begun


def bodies(kind):
    """Requests whose answers are long enough to be broken."""
    if kind == "scripted":
        return [
            {"text": f"[[tokens={TOKENS + number}]] request {number}", "max_tokens": 1000}
            for number in range(STREAMS)
        ]
    return [{"text": f"Count from {number} to 90.", "max_tokens": 150} for number in range(STREAMS)]


STACKS = {
    "scripted": ("--engine", "scripted", "--slots", str(STREAMS + 8)),
    "tiny": (*TINY, "--slots", str(STREAMS + 8)),
}


@pytest.fixture(params=STACKS)
def stack(request, machine):
    """Two workers, each with slots for all."""
    up = machine.up(
        *("--ephemeral", "--json", "--workers", "2", *STACKS[request.param]),
        FASTRUN_WORKER_SCRIPTED_TOKENS_PER_S="60",
    )
    with up.running():
        yield request.param, up


async def test_streams_go_on_when_their_worker_is_killed(stack, machine, eventually):
    """No client sees an error; texts are those of an undisturbed run, and each is recorded once."""
    kind, up = stack
    books, chance = Books(up), random.Random(60)
    asked = bodies(kind)
    async with Client(up) as client:
        undisturbed = await ask_all(client, asked)
        await asyncio.gather(*(task for _, task in undisturbed))
        expected = [(answer.text, answer.usage["completion_tokens"]) for answer, _ in undisturbed]
        assert all(answer.is_whole for answer, _ in undisturbed)
        for number in range(KILLS):
            await serving(up, 2)
            plain = [{**body, "stream": False, "stream_options": None} for body in asked[:4]]
            others = [client.begin(**body) for body in plain]
            begun = await ask_all(client, asked)
            busiest = await asyncio.to_thread(_busiest, up)
            await asyncio.sleep(chance.uniform(0, 0.2))
            running = sum(not task.done() for _, task in begun)
            os.kill(busiest, signal.SIGKILL)
            await asyncio.gather(*(task for _, task in [*begun, *others]))
            answers = [answer for answer, _ in begun]
            print(
                f"{kind}, kill {number}: {running} running,",
                Counter(answer.outcome() for answer in answers),
                f"longest pause {max(answer.longest_pause_s for answer in answers):.2f} s",
            )
            told = [
                (answer.text, answer.usage and answer.usage["completion_tokens"])
                for answer in answers
            ]
            assert [answer.outcome() for answer in answers] == ["whole"] * STREAMS
            assert told == expected
            assert [answer.text for answer, _ in others] == [text for text, _ in expected[:4]]

    records = await books.settled(60)
    assert records.keys() == {answer.request_id for answer in client.answers}
    for answer in client.answers:
        record = records[answer.request_id]
        assert record["status"] == "completed"
        assert record["prompt_tokens"] == answer.usage["prompt_tokens"]
        assert record["cached_tokens"] == answer.usage["prompt_tokens_details"]["cached_tokens"]
        assert record["completion_tokens"] == answer.usage["completion_tokens"]
    resumed = _resumed(up)
    print(f"{kind}: {resumed} generations resumed")
    assert resumed
    await serving(up, 2)
    assert await asyncio.to_thread(eventually, lambda: up.slots_in_use() == 0)
    assert (await asyncio.to_thread(up.fleet)).drift == 0


def _busiest(up):
    """Return the process id of the worker that runs most."""
    busiest = max(up.fleet().workers, key=lambda worker: worker.slots_in_use)
    port = int(busiest.address.rpartition(":")[2])
    pids = {line["grpc"]: line["pid"] for line in Books(up).logged("service_started")}
    return pids[port]


def _resumed(up):
    """How many generations went on elsewhere, as edges logged."""
    return len(Books(up).logged("generation_resumed", "edge"))


@pytest.fixture
def lone(machine):
    """A single worker."""
    up = machine.up(
        *("--ephemeral", "--json", "--engine", "scripted", "--slots", "8"),
        FASTRUN_WORKER_SCRIPTED_TOKENS_PER_S="60",
    )
    with up.running():
        yield up


async def test_streams_wait_for_the_only_worker_to_come_back(lone, machine, eventually):
    """Killed, it is started again, and its next process goes on with what the last one began."""
    async with Client(lone) as client:
        begun = await ask_all(client, bodies("scripted")[:8])
        (worker,) = workers(machine)
        os.kill(worker, signal.SIGKILL)
        await asyncio.gather(*(task for _, task in begun))
        killed = [answer for answer, _ in begun]
        print("longest pause", round(max(answer.longest_pause_s for answer in killed), 2), "s")
        assert [answer.outcome() for answer in killed] == ["whole"] * 8
        again = await ask_all(client, bodies("scripted")[:8])
        await asyncio.gather(*(task for _, task in again))
        assert [answer.text for answer in killed] == [answer.text for answer, _ in again]
    assert _resumed(lone) == len(killed)
    assert await asyncio.to_thread(eventually, lambda: lone.slots_in_use() == 0)


async def test_streams_leave_a_frozen_worker(machine, eventually):
    """What a worker that is frozen had goes on elsewhere; thawed, it frees its slots."""
    up = machine.up(
        *("--ephemeral", "--json", "--workers", "2", *STACKS["scripted"]),
        FASTRUN_WORKER_SCRIPTED_TOKENS_PER_S="30",
    )
    with up.running():
        await serving(up, 2)
        async with Client(up) as client:
            begun = await ask_all(client, bodies("scripted"))
            frozen = min(workers(machine))
            os.kill(frozen, signal.SIGSTOP)
            try:
                await asyncio.gather(*(task for _, task in begun))
            finally:
                os.kill(frozen, signal.SIGCONT)
            assert _resumed(up), "the frozen one had none"
            answers = [answer for answer, _ in begun]
            print("longest pause", round(max(each.longest_pause_s for each in answers), 2), "s")
            assert [answer.outcome() for answer in answers] == ["whole"] * STREAMS
            await serving(up, 2)
            again = await ask_all(client, bodies("scripted"))
            await asyncio.gather(*(task for _, task in again))
            assert [answer.text for answer in answers] == [answer.text for answer, _ in again]
        assert await asyncio.to_thread(eventually, lambda: up.slots_in_use() == 0)
        assert (await asyncio.to_thread(up.fleet)).drift == 0
        records = await Books(up).settled(60)
        assert records.keys() == {answer.request_id for answer in client.answers}


@pytest.mark.parametrize("at", [0, 5])
async def test_poison_does_not_walk_through_the_fleet(machine, eventually, at):
    """A request that kills every worker it runs on kills two, and its client gets an error."""
    up = machine.up(
        *("--ephemeral", "--json", "--workers", "4", "--engine", "scripted", "--slots", "4"),
        FASTRUN_WORKER_SCRIPTED_TOKENS_PER_S="60",
    )
    with up.running():
        await serving(up, 4)
        before = workers(machine)
        async with Client(up) as client:
            answer, task = client.begin(f"[[die={at}]] poison", max_tokens=100)
            await task
        assert not answer.is_whole
        assert await asyncio.to_thread(eventually, lambda: len(before & workers(machine)) <= 2)
        await serving(up, 4)
        died = len(before - workers(machine))
        print(f"poison at token {at}: {answer.outcome()}, {died} workers died")
        assert died == 2
