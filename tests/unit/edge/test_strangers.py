"""Strangers wait for one another, and nobody else waits for them."""

import asyncio
import itertools

from edge.strangers import Strangers


async def test_a_stranger_alone_passes_at_once():
    """Nothing is waited for where nobody is in the way."""
    gate = Strangers()
    for _ in range(3):
        passing = gate.passed()
        await asyncio.wait_for(passing, 5)
        await asyncio.sleep(0)  # the next turn of the loop
        await asyncio.sleep(0)


async def test_many_pass_a_few_in_each_turn():
    """Between two turns everything else that is ready runs."""
    gate, passed, seen = Strangers(per_turn=2), [], []

    async def stranger(number):
        await gate.passed()
        passed.append(number)

    crowd = [asyncio.create_task(stranger(number)) for number in range(50)]
    while not all(task.done() for task in crowd):
        seen.append(len(passed))
        await asyncio.sleep(0)
    assert passed == list(range(50))
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 4
    assert len(seen) >= 12


async def test_who_leaves_takes_no_turn():
    """A client that hangs up while it waits is passed over."""
    gate = Strangers(per_turn=1)
    first, second, third = (asyncio.create_task(gate.passed()) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait_for(asyncio.gather(first, third), 5)
    assert second.cancelled()
