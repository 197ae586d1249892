"""A worker that is asked to end: what runs finishes or goes on elsewhere, and nothing is half told."""

import asyncio
import threading

import numpy as np
import pytest

from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import FinishReason
from fastrun.v1.scheduler_pb2 import Drain, WorkerState
from fastrun.v1.worker_pb2 import DrainRequest, GetInfoRequest
from gpu_worker import engines
from gpu_worker.config import Config
from gpu_worker.engine.cpu.engine import CpuEngine

LIMIT_S = 20
LONG = "[[tokens=400]] Tell me a story."


def text_of(events):
    return "".join(delta.content for kind, delta in events if kind == "delta")


def ids_of(events):
    return [one for kind, delta in events if kind == "delta" for one in delta.token_ids]


async def ended(stack):
    await asyncio.wait_for(stack.drained.wait(), LIMIT_S)


async def loaded(**settings):
    """Return an engine and its model, and how a stack gets them."""
    config = Config(engine="scripted", scripted_tokens_per_s=100.0, **settings)
    engine, model = await engines.load(config)

    async def load():
        return engine, model

    return engine, model, load


async def test_what_can_go_on_elsewhere_moves_at_the_deadline(slow_stack, run_stack):
    """It is told all that was made of it, then that it moves; another worker ends the same text."""
    edge = slow_stack.edge()
    moving = [edge.start(slow_stack.ask(LONG)) for _ in range(3)]
    for stream_id in moving:
        await edge.first_delta(stream_id)
    slow_stack.scheduler.command(drain=Drain(deadline_ms=100))
    told = [await edge.end(stream_id) for stream_id in moving]
    await ended(slow_stack)

    for events in told:
        kind, failed = events[-1]
        assert (kind, failed.error.reason) == ("failed", ErrorReason.ERROR_REASON_MOVED)
    await slow_stack.scheduler.until(lambda s: len(s.freed) == 3)
    assert sorted(freed.usage.completion_tokens for freed in slow_stack.scheduler.freed) == sorted(
        len(ids_of(events)) for events in told
    )
    await slow_stack.scheduler.until(lambda s: s.heartbeats[-1].moved == 3)

    async with run_stack() as other:
        there = other.edge()
        whole = text_of(await there.end(there.start(other.ask(LONG))))
        for events in told:
            again = other.ask(LONG, resume_token_ids=ids_of(events))
            rest = await there.end(there.start(again))
            assert text_of(events) + text_of(rest) == whole
            assert rest[-1][1].usage.completion_tokens == 401


async def test_what_cannot_go_on_elsewhere_fails_at_the_deadline(run_stack):
    """Its edge learns that it was drained; of what nothing was told, that it may begin elsewhere."""
    engine, _, load = await loaded(scripted_prompt_tokens_per_s=1000.0)
    engine.__class__ = type("Mortal", (type(engine),), {"resumable": False})
    async with run_stack(load=load) as stack:
        edge = stack.edge()
        begun = edge.start(stack.ask(LONG))
        await edge.first_delta(begun)
        unread = edge.start(stack.ask(LONG + "x" * 5000))
        await stack.stub.Drain(DrainRequest(deadline_ms=0))
        reasons = [(await edge.end(one))[-1][1].error.reason for one in (begun, unread)]
        assert reasons == [ErrorReason.ERROR_REASON_DRAINING, ErrorReason.ERROR_REASON_MOVED]
        await ended(stack)
        assert stack.scheduler.heartbeats[-1].moved == 1


async def test_a_prompt_that_is_still_read_moves_too(run_stack, monkeypatch):
    """A request that has not even been accepted is told to go on elsewhere."""
    _, model, load = await loaded()
    entered, release = threading.Event(), threading.Event()
    token_ids = model.encoder.token_ids

    def slow(rendered):
        entered.set()
        release.wait(LIMIT_S)
        return token_ids(rendered)

    monkeypatch.setattr(model.encoder, "token_ids", slow)
    async with run_stack(load=load) as stack:
        edge = stack.edge()
        stream_id = edge.start(stack.ask("x" * 9000))
        assert await asyncio.to_thread(entered.wait, LIMIT_S)
        await stack.stub.Drain(DrainRequest(deadline_ms=0))
        events = await edge.end(stream_id)
        release.set()
        assert [kind for kind, _ in events] == ["failed"]
        assert events[0][1].error.reason == ErrorReason.ERROR_REASON_MOVED
        await stack.scheduler.until(lambda s: s.freed)
        assert not stack.scheduler.freed[0].HasField("usage")


async def test_an_operator_drains_by_the_worker_itself(slow_stack):
    """Drain says how many run, and asked again it sets another deadline and nothing else."""
    edge = slow_stack.edge()
    short, long = (edge.start(slow_stack.ask(text)) for text in ("[[tokens=40]]", LONG))
    await edge.first_delta(short)
    await edge.first_delta(long)
    answer = await slow_stack.stub.Drain(DrainRequest(deadline_ms=0xFFFFFFFF))
    assert answer.slots_in_use == 2
    await slow_stack.scheduler.until(
        lambda s: s.heartbeats[-1].state == WorkerState.WORKER_STATE_DRAINING
    )
    assert (await edge.end(short))[-1][1].reason == FinishReason.FINISH_REASON_STOP
    assert (await slow_stack.stub.Drain(DrainRequest(deadline_ms=0))).slots_in_use == 1
    assert (await edge.end(long))[-1][1].error.reason == ErrorReason.ERROR_REASON_MOVED
    await ended(slow_stack)
    assert (await slow_stack.stub.GetInfo(GetInfoRequest())).slots_in_use == 0


async def test_a_signal_hurries_a_long_drain(run_stack):
    """After SIGTERM what runs has drain_s and no more, whatever an operator has allowed before."""
    async with run_stack(scripted_tokens_per_s=100.0, drain_s=0.1) as stack:
        edge = stack.edge()
        stream_id = edge.start(stack.ask(LONG))
        await edge.first_delta(stream_id)
        await stack.stub.Drain(DrainRequest(deadline_ms=3_600_000))
        await asyncio.wait_for(stack.worker.drain(), LIMIT_S)
        assert (await edge.end(stream_id))[-1][1].error.reason == ErrorReason.ERROR_REASON_MOVED


async def test_what_runs_when_the_grace_is_over_moves(run_stack):
    """A worker that is stopped in the midst of a drain lets nothing fail that can go on."""
    async with run_stack(scripted_tokens_per_s=100.0, drain_s=3600) as stack:
        edge = stack.edge()
        stream_id = edge.start(stack.ask(LONG))
        await edge.first_delta(stream_id)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stack.worker.drain(), 0.1)
        await stack.worker.stop()
        assert (await edge.end(stream_id))[-1][1].error.reason == ErrorReason.ERROR_REASON_MOVED


class StandingNetwork:
    """Takes as long for a step as a test wants."""

    block_size = 16
    vocabulary = 258

    def __init__(self):
        self.inside, self.gate = threading.Event(), threading.Event()

    def forward(self, rows):
        self.inside.set()
        while not self.gate.is_set():
            sum(range(1000))  # in Python, so that every other thread has to ask for its turn
        return np.zeros((sum(row.samples for row in rows), self.vocabulary), np.float32)

    def close(self):
        self.gate.set()


async def test_a_step_that_does_not_end_holds_up_no_heartbeat(run_stack):
    """While the engine computes heartbeats come, requests are refused and drains are heard."""
    network = StandingNetwork()
    _, model, _ = await loaded()

    async def load():
        engine = CpuEngine(network, slots=1, context_length=2048, blocks=200)
        return engine, model

    async with run_stack(load=load, slots=1) as stack:
        edge = stack.edge()
        stream_id = edge.start(stack.ask(max_tokens=1))
        assert await asyncio.to_thread(network.inside.wait, LIMIT_S)
        seen, hellos = len(stack.scheduler.heartbeats), len(stack.scheduler.hellos)
        await stack.scheduler.until(lambda s: len(s.heartbeats) >= seen + 4)
        assert stack.scheduler.heartbeats[-1].context_tokens == 0
        assert stack.scheduler.heartbeats[-1].prefill_tokens > 0
        refused = await edge.end(edge.start(stack.ask()))
        assert refused[0][1].error.reason == ErrorReason.ERROR_REASON_NO_SLOT
        await stack.stub.Drain(DrainRequest())
        network.gate.set()
        assert (await edge.end(stream_id))[-1][0] == "finished"
        await ended(stack)
    assert len(stack.scheduler.hellos) == hellos  # no session has broken


async def test_an_engine_that_holds_on_keeps_nobody_waiting(run_stack, monkeypatch):
    """Whose request the engine does not give back is told to go on elsewhere all the same."""
    monkeypatch.setattr("gpu_worker.drain.ABORT_LIMIT_S", 0.1)
    network = StandingNetwork()
    _, model, _ = await loaded()

    async def load():
        return CpuEngine(network, slots=1, context_length=2048, blocks=200), model

    async with run_stack(load=load, slots=1) as stack:
        edge = stack.edge()
        stream_id = edge.start(stack.ask())
        assert await asyncio.to_thread(network.inside.wait, LIMIT_S)
        await stack.stub.Drain(DrainRequest(deadline_ms=0))
        assert (await edge.end(stream_id))[-1][1].error.reason == ErrorReason.ERROR_REASON_MOVED
        assert stack.scheduler.freed == []  # the engine has it still
        network.gate.set()
        await stack.scheduler.until(lambda s: s.freed)
