"""When a drain is over, on each event loop that a worker may run on."""

import asyncio

import pytest
import uvloop

from gpu_worker.drain import Drain

LIMIT_S = 20


class Endless:
    """A request that runs until it is moved."""

    def __init__(self):
        self.count = 1
        self._moved = asyncio.Event()

    async def idle(self):
        await self._moved.wait()

    def close(self):
        pass

    def move(self):
        self.count = 0
        self._moved.set()


async def nobody_grants():
    return False


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("first_s", [0, 0.01])
def test_a_drain_that_is_due_keeps_its_deadline_when_the_process_is_told_to_end(
    loop_factory, first_s
):
    """A later deadline that is asked for as SIGTERM does, before and after the end, moves nothing."""

    async def drained():
        ended = asyncio.Event()
        drain = Drain(Endless(), announce=nobody_grants, ended=ended)
        drain.within(first_s)
        drain.within(600, or_sooner=True)
        await asyncio.wait_for(drain.run(), LIMIT_S)
        drain.within(600, or_sooner=True)
        return ended.is_set()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(drained())
