"""Schedulers that die, freeze or lose Postgres under load: running streams notice nothing.

FASTRUN_TEST_RUNS=20 FASTRUN_TEST_TIMES=1 pytest -s tests/chaos/test_schedulers.py

takes the leader away more often, and holds new requests to their times, which a busy machine may
miss.
"""

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from postgres_outages import frozen, postmaster
from traffic import Callers, Records

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

RUNS = int(os.environ.get("FASTRUN_TEST_RUNS", "1"))
TIMES = "FASTRUN_TEST_TIMES" in os.environ
STREAMS = 8
STREAM_TOKENS = 200
RATE = 10
WAIT_S = 3.0
# One that was killed often is started again after 30 s.
PATIENCE_S = 60


@pytest.fixture(scope="module")
def stack(shared_machine):
    up = shared_machine.up(
        *("--data", str(shared_machine.root / "schedulers"), "--port", "0", "--json"),
        *("--schedulers", "2", "--edges", "2", "--workers", "2"),
        *("--engine", "scripted", "--slots", "8"),
        FASTRUN_WORKER_SCRIPTED_TOKENS_PER_S="40",
    )
    with up.running():
        yield up


class Schedulers:
    """Both, by what they say of themselves and in their logs."""

    def __init__(self, up):
        self._up = up
        self._logs = Path(up.ready["data"]) / "logs"

    def views(self):
        addresses = self._up.ready["scheduler_addresses"]
        return {address: self._up.view(address) for address in addresses}

    async def leader(self, *, above=0):
        """The address and term of the one that leads, once there is one with a higher term."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                views = await asyncio.to_thread(self.views)
                led = [(view.term, each) for each, view in views.items() if view and view.leads]
                if led and max(led)[0] > above:
                    return max(led)[1], max(led)[0]
                await asyncio.sleep(0.02)

    async def both(self):
        """Wait until one leads and the other one stands by, with the same fleet."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                views = list((await asyncio.to_thread(self.views)).values())
                if all(views) and sorted(view.leads for view in views) == [False, True]:
                    up = [sum(each.state == "serving" for each in view.workers) for view in views]
                    if up == [2, 2] and {view.edges for view in views} == {2}:
                        return
                await asyncio.sleep(0.02)

    def pid(self, address):
        port = int(address.rpartition(":")[2])
        for log in self._logs.glob("scheduler-*.log"):
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            started = [line for line in lines if line["event"] == "service_started"]
            if started and started[-1]["grpc"] == port:
                return started[-1]["pid"]
        raise AssertionError(f"nobody has told that it listens at {address}")

    def refusals(self):
        """Why workers refused requests."""
        return [line["reason"] for line in self._logged("worker-*.log", "request_refused")]

    def resumed(self):
        """How many generations went on elsewhere."""
        return len(self._logged("edge-*.log", "generation_resumed"))

    def _logged(self, logs, event):
        lines = [
            json.loads(line)
            for log in self._logs.glob(logs)
            for line in log.read_text().splitlines()
        ]
        return [line for line in lines if line["event"] == event]


def content(answer):
    events = [line[6:] for line in answer.text.split("\n\n") if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def long(number):
    text = f"stream {number}"
    return {"text": text, "max_tokens": STREAM_TOKENS, "temperature": 0, "stream": True}


async def all_run(stack):
    """Wait until all streams do."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            workers = (await asyncio.to_thread(stack.fleet)).workers
            if sum(len(each.heartbeat.running_lease_ids) for each in workers) >= STREAMS:
                return
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed(stack):
    """What the streams say while nothing happens."""

    async def asked():
        async with Callers.of(stack) as callers:
            key = stack.ready["api_key"]
            return await asyncio.gather(
                *(callers.ask(key, **long(number)) for number in range(STREAMS))
            )

    texts = [content(each) for each in asyncio.run(asked())]
    assert all(texts)
    return texts


@asynccontextmanager
async def under_load(stack, undisturbed, what):
    """Streams that run all the while, and new requests at a rate; both must see nothing.

    None of the streams is even resumed: what they would not notice either is another matter.
    """
    key = stack.ready["api_key"]
    over = asyncio.Event()
    resumed = Schedulers(stack).resumed()
    async with Callers.of(stack) as callers:
        streams = [
            asyncio.create_task(callers.ask(key, **long(number))) for number in range(STREAMS)
        ]
        await all_run(stack)
        steady = asyncio.create_task(callers.asked_steadily(lambda: key, per_s=RATE, until=over))
        try:
            yield
        finally:
            over.set()
        answers, streams = await steady, await asyncio.gather(*streams)
    waits = sorted(answer.took_s for answer in answers)
    print(
        f"\n{what}: {len(answers)} new requests, median {waits[len(waits) // 2]:.2f} s,"
        f" slowest {waits[-1]:.2f} s; {len(streams)} streams"
    )
    assert [each for each in (*answers, *streams) if each.status != 200 or not each.is_whole] == []
    assert [content(each) for each in streams] == undisturbed
    assert Schedulers(stack).resumed() == resumed
    if TIMES:
        assert waits[-1] < WAIT_S + waits[len(waits) // 2]


def is_idle(view):
    return not any(each.slots_in_use or each.heartbeat.running_lease_ids for each in view.workers)


async def settled(stack, schedulers, eventually):
    """Nothing is held any more, nobody was granted a slot that was not free."""
    await schedulers.both()
    assert await asyncio.to_thread(eventually, lambda: is_idle(stack.fleet()))
    assert stack.fleet().drift == 0
    assert [reason for reason in schedulers.refusals() if "slots" in reason] == []


@pytest.mark.parametrize("run", range(RUNS))
async def test_the_leader_is_killed(stack, undisturbed, eventually, run):
    """The other one leads at once: no stream notices, and no new request fails."""
    schedulers = Schedulers(stack)
    await schedulers.both()
    address, term = await schedulers.leader()
    async with under_load(stack, undisturbed, "killed"):
        killed_at = time.monotonic()
        os.kill(schedulers.pid(address), signal.SIGKILL)
        other, higher = await schedulers.leader(above=term)
        print(f"\nterm {higher} began {time.monotonic() - killed_at:.2f} s after the kill", end="")
        assert other != address
        await asyncio.sleep(1)
    await settled(stack, schedulers, eventually)


@pytest.mark.parametrize("run", range(RUNS))
async def test_the_leader_is_frozen_and_thawed(stack, undisturbed, eventually, run):
    """What it grants when it goes on is refused, and it stands by as soon as it hears."""
    schedulers = Schedulers(stack)
    await schedulers.both()
    address, term = await schedulers.leader()
    pid = schedulers.pid(address)
    async with under_load(stack, undisturbed, "frozen"):
        os.kill(pid, signal.SIGSTOP)
        try:
            _, higher = await schedulers.leader(above=term)
        finally:
            os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(1)
    await settled(stack, schedulers, eventually)
    assert not stack.view(address).leads
    assert stack.fleet().term == higher


@pytest.mark.parametrize("kind", ["killed", "frozen"])
async def test_postgres_is_away(stack, undisturbed, eventually, kind):
    """The leader goes on, with the same term."""
    schedulers = Schedulers(stack)
    await schedulers.both()
    before = await schedulers.leader()
    server = Records(stack).server
    async with under_load(stack, undisturbed, f"Postgres {kind}"):
        if kind == "killed":
            os.kill(postmaster(server), signal.SIGKILL)
            await asyncio.sleep(4)
        else:
            with frozen(server):
                await asyncio.sleep(4)
    assert await schedulers.leader() == before
    await settled(stack, schedulers, eventually)


async def test_both_are_killed(stack, eventually):
    """Streams run on; new requests wait for the first one to be back, or are told to come again."""
    schedulers = Schedulers(stack)
    await schedulers.both()
    _, term = await schedulers.leader()
    key, resumed = stack.ready["api_key"], schedulers.resumed()
    async with Callers.of(stack) as callers:
        streams = [
            asyncio.create_task(callers.ask(key, **long(number))) for number in range(STREAMS)
        ]
        await all_run(stack)
        for address in stack.ready["scheduler_addresses"]:
            os.kill(schedulers.pid(address), signal.SIGKILL)
        answers = await asyncio.gather(*(callers.ask(key) for _ in range(10)))
        await schedulers.leader(above=term)
        assert (await callers.ask(key)).status == 200
        streams = await asyncio.gather(*streams)
    assert {each.status for each in answers} <= {200, 503}
    assert [each for each in streams if each.status != 200 or not each.is_whole] == []
    assert schedulers.resumed() == resumed
    await settled(stack, schedulers, eventually)
