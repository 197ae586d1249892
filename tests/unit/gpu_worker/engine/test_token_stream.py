"""Tokens between the engine and its reader."""

import asyncio

import pytest

from gpu_worker.engine.protocol import EngineError, Finish, StepOutput, TokenLogprobs
from gpu_worker.engine.token_stream import TokenStream


async def test_gathers_until_asked():
    """Tokens that came since the last call are one output."""
    stream = TokenStream(with_logprobs=False)
    stream.cached_tokens = 3
    stream.add(1, None, None)
    stream.add(2, None, None)
    assert await stream.next() == StepOutput(token_ids=[1, 2], cached_tokens=3)
    stream.add(3, None, Finish.LENGTH)
    assert await stream.next() == StepOutput(token_ids=[3], finish=Finish.LENGTH, cached_tokens=3)


async def test_waits_for_tokens():
    """Without tokens the reader waits until there is one."""
    stream = TokenStream(with_logprobs=False)
    reader = asyncio.create_task(stream.next())
    await asyncio.sleep(0)
    assert not reader.done()
    stream.add(1, None, None)
    assert (await reader).token_ids == [1]


async def test_logprobs_go_with_their_tokens():
    """Each token's logprobs come in the same output."""
    stream = TokenStream(with_logprobs=True)
    first, second = TokenLogprobs(chosen=-1, top=[]), TokenLogprobs(chosen=-2, top=[])
    stream.add(1, first, None)
    assert (await stream.next()).logprobs == [first]
    stream.add(2, second, None)
    assert (await stream.next()).logprobs == [second]


async def test_failure_reaches_the_reader():
    """A failed stream raises, also for a reader that waits already."""
    stream = TokenStream(with_logprobs=False)
    reader = asyncio.create_task(stream.next())
    await asyncio.sleep(0)
    stream.fail(EngineError("broken"))
    with pytest.raises(EngineError, match="broken"):
        await reader
