"""Clients leave and processes are killed, ended and frozen at random moments, all at once.

As it was done before a release:

    FASTRUN_TEST_KILLS=200 FASTRUN_TEST_CLIENTS=10000 pytest -s tests/chaos/test_random_kills.py

FASTRUN_TEST_SEED=n repeats what was done with that seed, though not when each thing happens.
"""

import asyncio
import math
import os
import sys
from collections import Counter
from contextlib import AsyncExitStack
from random import Random

import pytest
from killers import Crowd, Killer, Watch, tally
from metering import Books, misrecorded
from traffic import Callers, Operator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

KILLS = int(os.environ.get("FASTRUN_TEST_KILLS", "8"))
CLIENTS = int(os.environ.get("FASTRUN_TEST_CLIENTS", "150"))
SEED = int(os.environ.get("FASTRUN_TEST_SEED", "6"))
IS_LONG = KILLS > 20
BETWEEN_S = 3 if IS_LONG else 0.8
"""Between two kills, in the mean."""
# One that was killed more often than once a minute would be started again the later, each time.
EDGES, WORKERS = (8, 10) if IS_LONG else (3, 3)
SLOTS = 6
MOST_GROWN_MIB = 100
"""Large prompts take some for a while."""


@pytest.fixture
def up(machine):
    up = machine.up(
        *("--ephemeral", "--json", "--engine", "scripted", "--slots", str(SLOTS)),
        *("--schedulers", "2", "--edges", str(EDGES), "--workers", str(WORKERS)),
        FASTRUN_WORKER_SCRIPTED_TOKENS_PER_S="100",
        FASTRUN_WORKER_SCRIPTED_CONTEXT=str(1 << 20),
    )
    with up.running():
        yield up


async def until(condition, timeout_s, what):
    """Wait until something holds of the fleet; return the fleet."""
    last = None
    try:
        async with asyncio.timeout(timeout_s):
            while not condition(last := await asyncio.to_thread(what)):
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"never came to be so: {last}") from None
    return last


def is_idle(fleet):
    """Nothing waits, and no slot is held: in the leader's books, and as workers say themselves."""
    return not any(
        worker.slots_in_use or worker.heartbeat.running_lease_ids or worker.heartbeat.waiting
        for worker in fleet.workers
    ) and not any(queue.waiting for queue in fleet.queues)


def all_serve(fleet):
    """All have come back, and all that are no more are known to be."""
    return [worker.state for worker in fleet.workers] == ["serving"] * WORKERS


async def all_slots_serve(up, callers):
    """As many requests as there are slots run at once: none of the slots is lost."""
    reading = [asyncio.create_task(read(up, callers)) for _ in range(SLOTS * WORKERS)]
    await until(
        lambda fleet: (
            [each.slots_in_use for each in fleet.workers]
            == [len(each.heartbeat.running_lease_ids) for each in fleet.workers]
            == [SLOTS] * WORKERS
        ),
        60,
        up.fleet,
    )
    for each in reading:
        each.cancel()
    left = await asyncio.gather(*reading, return_exceptions=True)
    assert {type(each) for each in left} == {asyncio.CancelledError}


async def read(up, callers):
    """Read an answer that does not end by itself while anybody looks."""
    request = callers.sent(up.ready["api_key"], stream=True, max_tokens=4000)
    async with request as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()


async def test_random_kills(up, machine):
    """Nothing is leaked, granted twice, left hanging, told wrong, or recorded other than once."""
    books, watch = Books(up), Watch(up, machine)
    killer = Killer(machine, Random(SEED))
    span_s = KILLS * BETWEEN_S
    over = asyncio.Event()
    async with AsyncExitStack() as opened:
        callers = await opened.enter_async_context(Callers.of(up, patience_s=120))
        operator = await opened.enter_async_context(Operator.of(up))
        keys = [(await operator.issue()).key for _ in range(3)]
        crowd = Crowd(callers, keys, SEED)
        watching = asyncio.create_task(watch.look(over))
        await asyncio.gather(
            crowd.come(CLIENTS, span_s),
            killer.work(KILLS, span_s, longest_freeze_s=8 if IS_LONG else 4),
        )
        report(killer, watch, crowd.endings)
        await until(is_idle, 30, up.fleet)
        await until(all_serve, 90, up.fleet)
        over.set()
        await watching
        await all_slots_serve(up, callers)
        fleet = await until(is_idle, 30, up.fleet)
    endings = crowd.endings
    records = await books.settled(60)
    accepted = {line["request_id"] for line in books.logged("request_started")}
    refusals = Counter(line["reason"] for line in books.logged("request_refused"))
    print("records:", tally(record["status"] for record in records.values()))
    print("refused by workers:", dict(refusals))

    assert fleet.drift == 0
    assert watch.faults == []
    assert all(grown < MOST_GROWN_MIB for grown in watch.most_grown_mib().values())
    assert [reason for reason in refusals if "slots of this worker are busy" in reason] == []
    assert [each for each in endings if wrong(each, killer)] == []
    assert accepted - records.keys() == set()
    statuses = {request_id: record["status"] for request_id, record in records.items()}
    assert {statuses[each] for each in records.keys() - accepted} <= {"lost"}
    whole = [each for each in endings if each.is_whole]
    lost = [each for each in whole if statuses[each.request_id] == "lost"]
    assert [each for each in lost if not killer.was_killed("edge", each.began_at, math.inf)] == []
    known = [each for each in whole if statuses[each.request_id] != "lost"]
    assert misrecorded(known, records) == []
    assert overcounted(endings, records) == []


def wrong(ending, killer):
    """Tell whether a client had reason to complain."""
    during = (ending.began_at, ending.ended_at)
    match ending.how:
        case "whole" | "hung up":
            return False
        case "broken":
            return not killer.was_killed("edge", *during)
        case "refused" if ending.status in (429, 503):
            return False
        case "refused" if ending.status == 502:
            return not killer.was_hit(*during)
        case "error event":
            return not killer.was_hit(*during)
    return True


def overcounted(endings, records):
    """Records with more tokens than the whole answer has, as if some had been generated twice."""
    return [
        (ending, record)
        for ending in endings
        if (record := records.get(ending.request_id)) and record["completion_tokens"] is not None
        if record["completion_tokens"] > ending.choices * (len(ending.text) + 1)
    ]


def report(killer, watch, endings):
    print(f"\nseed {SEED}:", tally(f"{hit.signal} of {hit.service}" for hit in killer.hits))
    print(f"{len(endings)} requests:", tally(ending.told() for ending in endings))
    print(
        f"{watch.views} looks: at most {watch.most_in_use} slots in use, {watch.most_waiting} waiting,"
        f" drift {max(drift for _, drift in watch.drifts)}, for {watch.longest_drift_s():.1f} s at most"
    )
    print("grown at most, in MiB:", watch.most_grown_mib())
