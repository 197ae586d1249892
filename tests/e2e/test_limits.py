"""Limits of a whole stack: over two edges as much passes as is allowed, and no more.

FASTRUN_TEST_RUNS=100 pytest -s tests/e2e/test_limits.py asks 1,000 times at 100 per minute.
"""

import asyncio
import os
import time

import pytest
from traffic import Callers, Operator, edges_that_answered

RUNS = int(os.environ.get("FASTRUN_TEST_RUNS", "4"))
PARALLEL = 50
AT_ONCE = 10
PER_MINUTE = RUNS * 5 if RUNS < 20 else 100
OK, REFUSED = 200, 429


@pytest.fixture(scope="module")
def stack(shared_machine):
    """Two edges, and more slots than the limits allow to use."""
    up = shared_machine.up(
        *("--ephemeral", "--json", "--edges", "2", "--engine", "scripted", "--slots", "32")
    )
    with up.running():
        yield up


async def most_slots_in_use(stack, until):
    """Look at the fleet again and again; the most that was seen, and how often it was looked at."""
    seen = []
    while not until.is_set():
        seen.append(await asyncio.to_thread(stack.slots_in_use))
        await asyncio.sleep(0.01)
    return max(seen), len(seen)


async def judge(stack, answers):
    """All are answered or refused with a time to come back, each by one of two edges."""
    assert {each.status for each in answers} == {OK, REFUSED}
    for each in answers:
        assert each.is_whole or each.status == REFUSED
        if each.status == REFUSED:
            assert 1 <= int(each.headers["retry-after"]) <= 61
    assert await edges_that_answered(stack, answers) == 2
    return sum(each.status == OK for each in answers)


async def test_concurrent_requests(stack):
    """Of 50 parallel requests at a limit of 10, never more than 10 run, and 10 do."""
    async with Callers.of(stack) as callers, Operator.of(stack) as operator:
        issued = await operator.issue(concurrent_requests=AT_ONCE)
        over = asyncio.Event()
        looking = asyncio.create_task(most_slots_in_use(stack, over))
        passed = 0
        for _ in range(2):
            answers = await asyncio.gather(
                *(
                    callers.ask(issued.key, "[[tokens=100]]", stream=True, max_tokens=100)
                    for _ in range(PARALLEL)
                )
            )
            passed += await judge(stack, answers)
        over.set()
        most, looks = await looking
        print(f"\n{passed} of {2 * PARALLEL} passed, at most {most} at once, seen in {looks} looks")
        assert most == AT_ONCE
        assert passed >= AT_ONCE


async def test_requests_per_minute(stack):
    """Of ten times as many requests as a minute may see, exactly those pass."""
    async with Callers.of(stack) as callers, Operator.of(stack) as operator:
        issued = await operator.issue(requests_per_minute=PER_MINUTE)
        began_at, gate = time.monotonic(), asyncio.Semaphore(PARALLEL)

        async def one():
            async with gate:
                return await callers.ask(issued.key, max_tokens=1)

        answers = await asyncio.gather(*(one() for _ in range(10 * PER_MINUTE)))
        took_s = time.monotonic() - began_at
        passed = await judge(stack, answers)
        print(f"\n{passed} of {len(answers)} passed at {PER_MINUTE} per minute in {took_s:.1f} s")
        assert passed == PER_MINUTE
