"""The tiny model on the CPU engine, through the whole worker."""

from pathlib import Path

import pytest

from fastrun.service.lifecycle import StartError
from fastrun.v1.generation_pb2 import FinishReason
from gpu_worker import engines
from gpu_worker.config import Config
from gpu_worker.engine.cpu.network import PagedNetwork

TINY = Path(__file__).parents[2] / "models" / "tiny" / "tiny.gguf"


def text_of(events):
    """Join what the deltas say."""
    return "".join(event.content for kind, event in events if kind == "delta")


async def test_a_model_answers_through_the_worker(tiny):
    """Eight requests at once get the model's answers: many bytes per character, stops, limits."""
    edge = tiny.edge()
    cases = [
        ({"text": "Say hello in Japanese."}, "こんにちは 👋", FinishReason.FINISH_REASON_STOP),
        (
            {"text": "Count from 17 to 40.", "stop": ["20"]},
            "17 18 19 ",
            FinishReason.FINISH_REASON_STOP,
        ),
        ({"text": "Hello", "max_tokens": 1}, None, FinishReason.FINISH_REASON_LENGTH),
    ]
    started = []
    for number in range(8):
        fields, text, reason = cases[number % len(cases)]
        started.append((edge.start(tiny.ask(model="tiny", **fields)), text, reason))
    for stream_id, text, reason in started:
        events = await edge.end(stream_id)
        assert events[-1][0] == "finished"
        assert events[-1][1].reason == reason
        assert text in (None, text_of(events))
        assert "\ufffd" not in text_of(events)
    again = await edge.end(edge.start(tiny.ask(model="tiny", text="Say hello in Japanese." * 20)))
    same = await edge.end(edge.start(tiny.ask(model="tiny", text="Say hello in Japanese." * 20)))
    assert again[-1][1].usage.prompt_tokens == same[-1][1].usage.prompt_tokens
    assert same[-1][1].usage.cached_tokens > 0
    told = [event.cached_tokens for kind, event in same if kind == "delta"]
    assert told == [same[-1][1].usage.cached_tokens, *[0] * (len(told) - 1)]


async def test_aborts_free_slots_and_blocks(tiny):
    """Requests cut off at any moment leave nothing behind in slots and KV cache."""
    edge = tiny.edge()
    for round_ in range(4):
        started = [
            edge.start(tiny.ask(model="tiny", text=f"Count from {n} to 90.")) for n in range(8)
        ]
        if round_:
            await edge.first_delta(started[0])
        for stream_id in started:
            edge.abort(stream_id)
        for stream_id in started:
            assert (await edge.end(stream_id))[-1][0] == "finished"
        await tiny.scheduler.until(lambda s, n=round_: len(s.freed) == 8 * (n + 1))
    await tiny.scheduler.until(lambda s: not s.heartbeats[-1].running_lease_ids)
    assert tiny.scheduler.heartbeats[-1].kv_blocks_used == 0


async def test_an_engine_that_cannot_generate_does_not_start(cache, monkeypatch):
    """It generates before the worker tells anybody of itself."""

    def forward(_network, _rows):
        raise RuntimeError("no kernel fits")

    monkeypatch.setattr(PagedNetwork, "forward", forward)
    config = Config(model=f"tiny={TINY}", cache=str(cache), slots=2, kv_cache_mib=64)
    with pytest.raises(StartError, match=r"does not generate: .*no kernel fits"):
        await engines.load(config)


async def test_what_warms_an_engine_up_counts_nowhere(cache):
    """Nobody has asked for it: neither counters nor slots show it."""
    config = Config(model=f"tiny={TINY}", cache=str(cache), slots=2, kv_cache_mib=64)
    engine, _ = await engines.load(config)
    try:
        stats = engine.stats()
        fields = (stats.prompt_tokens, stats.cached_tokens, stats.completion_tokens)
        assert (*fields, stats.running, stats.kv_blocks_used, stats.preemptions) == (0,) * 6
    finally:
        await engine.close()
