"""The CPU engine's threads and failures, on a network that computes nothing."""

import asyncio
import threading

import numpy as np
import pytest
from engine_outputs import outputs_of

from gpu_worker.engine.cpu.engine import CpuEngine
from gpu_worker.engine.protocol import EngineDeadError, EngineError, SamplingParams

VOCABULARY = 50


class CountingNetwork:
    """Says that the likeliest token is the one after the last."""

    block_size = 4
    vocabulary = VOCABULARY

    def __init__(self):
        self.closed = False
        self.gate = threading.Event()  # steps wait for it
        self.gate.set()
        self.inside = threading.Event()  # a step has begun
        self.error = None
        self.free_steps = 0  # these do not wait
        self.rows = []  # of the last step

    def forward(self, rows):
        self.rows = rows
        if self.free_steps:
            self.free_steps -= 1
        else:
            self.inside.set()
            assert self.gate.wait(10)
        if self.error:
            raise self.error
        sampled = [row for row in rows if row.samples]
        logits = np.zeros((len(sampled), VOCABULARY), np.float32)
        for at, row in enumerate(sampled):
            last = row.sequence.token_ids[row.sequence.length - 1]
            logits[at, (last + 1) % VOCABULARY] = 9
        return logits

    def close(self):
        self.closed = True


@pytest.fixture
def network():
    return CountingNetwork()


@pytest.fixture
async def engine(network):
    engine = CpuEngine(network, slots=2, context_length=64, blocks=32, stalled_after_s=5)
    yield engine
    network.gate.set()
    await engine.close()


def generate(engine, prompt=(1, 2), max_tokens=4, **fields):
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0, **fields)
    return outputs_of(engine, prompt, sampling, cache_salt="")


async def tokens(stream):
    return [token async for output in stream for token in output.token_ids]


async def test_generates(engine):
    """Tokens come in order, up to max_tokens."""
    assert await tokens(generate(engine)) == [3, 4, 5, 6]


async def test_a_prompt_that_nobody_sent_follows_the_warm_up(engine, network):
    """It is longer, so that weights are packed for it, and counts nowhere."""
    network.free_steps = 2
    network.gate.clear()
    await engine.warm_up()
    assert await asyncio.to_thread(network.inside.wait, 10)
    assert [row.size for row in network.rows] == [network.block_size]
    network.gate.set()
    assert await tokens(generate(engine)) == [3, 4, 5, 6]
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.completion_tokens, stats.kv_blocks_used) == (2, 4, 0)


@pytest.mark.parametrize(
    ("prompt", "max_tokens"),
    [((), 1), ((1,), 0), ((VOCABULARY,), 1), ((-1,), 1), ([1] * 64, 1)],
)
async def test_refuses_what_would_harm(engine, prompt, max_tokens):
    """Empty, overlong and impossible prompts fail alone and hold nothing."""
    with pytest.raises(EngineError):
        await tokens(generate(engine, prompt, max_tokens))
    assert await tokens(generate(engine)) == [3, 4, 5, 6]
    assert engine.stats().running == engine.stats().waiting == 0


async def test_context_is_what_the_blocks_hold(network):
    """A pool smaller than the model's context shrinks the context, so that all that is taken fits."""
    engine = CpuEngine(network, slots=2, context_length=64, blocks=3)
    assert engine.context_length == 12
    assert len(await tokens(generate(engine, max_tokens=100))) == 10
    await engine.close()


async def test_abort_waits_for_the_step(engine, network):
    """aclose() returns when the engine holds nothing of the request, not before."""
    network.gate.clear()
    network.free_steps = 1
    stream = generate(engine, max_tokens=50)
    await anext(stream)
    await asyncio.to_thread(network.inside.wait, 10)
    closing = asyncio.create_task(stream.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    assert engine.stats().running == 1
    network.gate.set()
    await closing
    assert engine.stats().running == engine.stats().kv_blocks_used == 0


async def test_cancelled_reader_releases(engine, network):
    """A task that is cancelled while it waits for tokens leaves nothing behind."""
    network.gate.clear()
    reader = asyncio.create_task(tokens(generate(engine, max_tokens=50)))
    await asyncio.to_thread(network.inside.wait, 10)
    reader.cancel()
    await asyncio.sleep(0)
    network.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert engine.stats().running == engine.stats().kv_blocks_used == 0


async def test_dead_step_thread_fails_all(engine, network):
    """When a step fails, every request fails, and so do later ones and health."""
    network.gate.clear()
    readers = [asyncio.create_task(tokens(generate(engine))) for _ in range(4)]
    await asyncio.to_thread(network.inside.wait, 10)
    network.error = RuntimeError("out of memory")
    network.gate.set()
    for reader in readers:
        with pytest.raises(EngineDeadError, match="out of memory"):
            await reader
    with pytest.raises(EngineDeadError, match="out of memory"):
        engine.health()
    with pytest.raises(EngineDeadError):
        await tokens(generate(engine))


async def test_stuck_step_shows_in_health(network):
    """A step that does not end in time makes the engine unhealthy."""
    now = 100.0
    engine = CpuEngine(
        network, slots=2, context_length=64, blocks=32, stalled_after_s=5, clock=lambda: now
    )
    network.gate.clear()
    reader = asyncio.create_task(tokens(generate(engine)))
    await asyncio.to_thread(network.inside.wait, 10)
    engine.health()
    now = 106.0
    with pytest.raises(EngineDeadError, match="6 s"):
        engine.health()
    network.gate.set()
    await reader
    engine.health()
    await engine.close()


async def test_close_ends_what_runs(network):
    """Closing fails running requests, frees the network, and may be repeated."""
    engine = CpuEngine(network, slots=2, context_length=64, blocks=32)
    network.gate.clear()
    network.free_steps = 1
    stream = generate(engine, max_tokens=60)
    await anext(stream)
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    network.gate.set()
    await closing
    with pytest.raises(EngineDeadError, match="closed"):
        await tokens(stream)
    assert network.closed
    await engine.close()
    assert not any(thread.name == "cpu-engine" for thread in threading.enumerate())


async def test_cached_tokens_are_on_every_output(engine):
    """Each output says how many prompt tokens came from the cache."""
    prompt = list(range(10))
    await tokens(generate(engine, prompt))
    came = [output async for output in generate(engine, prompt)]
    assert {output.cached_tokens for output in came} == {8}


def test_engine_outlives_an_event_loop(network):
    """A loop that ends with streams open does not hold the engine's slots."""
    engine = CpuEngine(network, slots=1, context_length=1000, blocks=300)

    async def leave():
        stream = generate(engine, max_tokens=900)
        await anext(stream)
        return stream

    async def use():
        answer = await asyncio.wait_for(tokens(generate(engine)), 10)
        await engine.close()
        return answer

    loop = asyncio.new_event_loop()
    stream = loop.run_until_complete(leave())
    loop.close()
    assert asyncio.run(use()) == [3, 4, 5, 6]
    del stream
