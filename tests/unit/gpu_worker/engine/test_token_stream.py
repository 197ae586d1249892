"""Tokens from an engine's step to who takes them."""

import asyncio

import pytest

from gpu_worker.engine.protocol import EngineError, Finish, StepOutput, TokenLogprobs
from gpu_worker.engine.token_stream import TokenStream


class Taker:
    """Keeps what it takes, up to as many outputs as it wants."""

    def __init__(self, wants=100):
        self.wants = wants
        self.outputs = []

    def __call__(self, output):
        self.outputs.append(output)
        return len(self.outputs) == self.wants


async def test_hands_over_at_once():
    """What a step made is taken before add() returns, and a finish is the end."""
    taker = Taker()
    stream = TokenStream(taker)
    stream.cached_tokens = 3
    logprobs = [TokenLogprobs(chosen=-1, top=[])]
    stream.add([1, 2])
    stream.add([3], Finish.LENGTH, logprobs)
    assert taker.outputs == [
        StepOutput([1, 2], cached_tokens=3),
        StepOutput([3], logprobs, Finish.LENGTH, cached_tokens=3),
    ]
    await stream.over()


async def test_is_over_when_its_taker_has_enough():
    """What comes while the engine lets go is dropped."""
    taker = Taker(wants=2)
    stream = TokenStream(taker)
    for token in range(5):
        stream.add([token])
    await stream.over()
    assert [output.token_ids for output in taker.outputs] == [[0], [1]]


async def test_who_is_cancelled_takes_nothing_more():
    """A reader that left hears of no token and of no failure."""
    taker = Taker()
    stream = TokenStream(taker)
    reader = asyncio.create_task(stream.over())
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait([reader])
    stream.add([1])
    stream.fail(EngineError("broken"))
    assert taker.outputs == []


async def test_failure_reaches_the_reader():
    """A failed stream raises, also for a reader that waits already; what comes later is dropped."""
    taker = Taker()
    stream = TokenStream(taker)
    reader = asyncio.create_task(stream.over())
    await asyncio.sleep(0)
    stream.fail(EngineError("broken"))
    stream.add([1])
    with pytest.raises(EngineError, match="broken"):
        await reader
    assert taker.outputs == []


async def test_what_a_taker_raises_is_its_own_failure():
    """The engine's step goes on for all others."""

    def take(_):
        raise KeyError("a bug")

    stream = TokenStream(take)
    stream.add([1])
    stream.add([2])
    with pytest.raises(KeyError, match="a bug"):
        await stream.over()
