"""Waiting for slots of a whole stack: exactly as many run as there are slots, and accounts take turns.

FASTRUN_TEST_RUNS=200 FASTRUN_TEST_TIMES=1 pytest -s tests/e2e/test_waiting.py
is as long as before a release, and holds the waits to times.
"""

import asyncio
import os
import statistics
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random

import orjson
import pytest
from traffic import PATIENCE_S, Callers, Operator

RUNS = int(os.environ.get("FASTRUN_TEST_RUNS", "4"))
TIMES = "FASTRUN_TEST_TIMES" in os.environ
SLOTS = 4
FLOOD = 500
ASKED = max(8, RUNS // 5)
OK, REFUSED = 200, 429


def start(machine, *, edges, per_s):
    return machine.up(
        *("--ephemeral", "--json", "--engine", "scripted", "--slots", str(SLOTS)),
        *("--edges", str(edges)),
        FASTRUN_WORKER_SCRIPTED_TOKENS_PER_S=str(per_s),
    )


@pytest.fixture(params=[1, 4], ids=["one edge", "four edges"])
def stack(shared_machine, request):
    """A stack whose answers last as long as somebody reads them."""
    up = start(shared_machine, edges=request.param, per_s=20)
    with up.running():
        yield up


@pytest.fixture
def busy_stack(shared_machine):
    """A stack whose answers take most of a second."""
    up = start(shared_machine, edges=2, per_s=50)
    with up.running():
        yield up


def logged(stack, event):
    """Lines of an event in the logs of all edges."""
    return [
        told
        for path in Path(stack.ready["data"], "logs").glob("edge*.log")
        for line in path.read_bytes().splitlines()
        if (told := orjson.loads(line))["event"] == event
    ]


class Reader:
    """A client of one streamed answer, which reads until it is told to leave."""

    def __init__(self, callers, key):
        self.has_begun = asyncio.Event()
        self._task = asyncio.create_task(self._read(callers, key))

    async def _read(self, callers, key):
        async with callers.sent(key, stream=True, max_tokens=4000) as response:
            assert response.status == OK
            async for _ in response.content:
                self.has_begun.set()

    async def leave(self):
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


async def fleet_where(stack, slots, waiting):
    """Look until so many slots are held and so many requests wait; never more are held."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            fleet = await asyncio.to_thread(stack.fleet)
            held = sum(worker.slots_in_use for worker in fleet.workers)
            assert held <= SLOTS
            if (held, sum(queue.waiting for queue in fleet.queues)) == (slots, waiting):
                return fleet


async def begun(readers, count):
    """Wait until so many are read from; never more are."""
    async with asyncio.timeout(PATIENCE_S):
        while (now := sum(each.has_begun.is_set() for each in readers)) < count:
            await asyncio.sleep(0.01)
    assert now == count


async def one_more_than_slots(stack, callers):
    """One round: of all but one the answers run, and that one waits until another's client leaves."""
    readers = [Reader(callers, stack.ready["api_key"]) for _ in range(SLOTS + 1)]
    try:
        await begun(readers, SLOTS)
        await fleet_where(stack, SLOTS, 1)
        await begun(readers, SLOTS)
        gone = next(each for each in readers if each.has_begun.is_set())
        await gone.leave()
        await begun(readers, SLOTS + 1)
        await fleet_where(stack, SLOTS, 0)
    finally:
        for each in readers:
            await each.leave()
    fleet = await fleet_where(stack, 0, 0)
    assert fleet.drift == 0


async def test_one_more_than_slots(stack):
    """Of N + 1 requests at once on N slots exactly N run and one waits, each time."""
    async with Callers.of(stack) as callers:
        for _ in range(RUNS):
            await one_more_than_slots(stack, callers)
    assert not logged(stack, "generation_retried"), "a worker was sent more than it has slots"
    edges = Path(stack.ready["data"], "logs").glob("edge*.log")
    shares = [path.read_bytes().count(b'"request_finished"') for path in edges]
    print(f"\n{RUNS} rounds of {SLOTS + 1} on {SLOTS} slots; requests of each edge: {shares}")


async def keep_asking(callers, key, over, random):
    """A client of the flood: asks, and asks again when it was told to; when its answers ended.

    Its answers differ in length. Else all slots would become free at the same moments, and whoever
    comes after one waits for a whole answer, whatever the turn.
    """
    ended = []
    while not over.is_set():
        answer = await callers.ask(key, max_tokens=random.randint(20, 60))
        if answer.status == OK:
            ended.append(answer.ended_at)
        else:
            assert answer.status == REFUSED
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), int(answer.headers["retry-after"]))
    return ended


async def test_flood(busy_stack):
    """Beside an account that has 500 requests at once, one that asks one by one has its turns."""
    async with AsyncExitStack() as opened:
        callers = await opened.enter_async_context(Callers.of(busy_stack))
        operator = await opened.enter_async_context(Operator.of(busy_stack))
        flooder, other = await operator.issue(), await operator.issue()
        over = asyncio.Event()
        random = Random(1)
        flood = [
            asyncio.create_task(keep_asking(callers, flooder.key, over, random))
            for _ in range(FLOOD)
        ]
        full = busy_stack.fleet().queues[0].bound
        await fleet_where(busy_stack, SLOTS, full)
        answers = [await callers.ask(other.key, max_tokens=40) for _ in range(ASKED)]
        over.set()
        ended = [at for each in await asyncio.gather(*flood) for at in each]
    began_at, last_at = answers[0].began_at, answers[-1].ended_at
    ended += [each.ended_at for each in answers]
    freed = sorted(at for at in ended if began_at <= at <= last_at)
    between_ms = (freed[-1] - freed[0]) / (len(freed) - 1) * 1000
    queued = {
        each["request_id"]: each["queued_ms"]
        for each in logged(busy_stack, "request_finished")
        if "queued_ms" in each
    }
    waits_ms = [queued[each.request_id] for each in answers if each.status == OK]
    refused = sum(each["status"] == REFUSED for each in logged(busy_stack, "request_finished"))
    p50_ms = statistics.median(waits_ms)
    print(
        f"\n{FLOOD} requests at once on {SLOTS} slots, {refused} refusals; {ASKED} of another account:"
        f" wait p50 {p50_ms:.0f} ms, most {max(waits_ms):.0f} ms;"
        f" {between_ms:.0f} ms between two freed slots: {p50_ms / between_ms:.2f} times that"
    )
    assert [each.status for each in answers] == [OK] * ASKED
    assert refused > 0
    assert not TIMES or p50_ms < 3 * between_ms
