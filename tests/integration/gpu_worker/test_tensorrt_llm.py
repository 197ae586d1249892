"""A worker with the TensorRT-LLM engine, over the stand-in: what edges and schedulers see of it."""

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from functools import partial

import grpc
import pytest
from standin_engine import STANDIN, TINY, installed

from fastrun.service import rpc
from fastrun.service.lifecycle import StartError
from fastrun.v1 import worker_pb2_grpc
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import (
    FinishReason,
    ResponseFormat,
    Sampling,
    Tool,
    ToolChoice,
    ToolChoiceMode,
)
from fastrun.v1.scheduler_pb2 import WorkerState
from fastrun.v1.worker_pb2 import GetInfoRequest
from gpu_worker import engines
from gpu_worker.config import Config
from gpu_worker.memory import MemoryBound

MODEL = f"tiny={TINY}"
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
WEATHER = Tool(name="get_weather", description="", parameters_json_schema=json.dumps(CITY))
REQUIRED = ToolChoice(mode=ToolChoiceMode.TOOL_CHOICE_MODE_REQUIRED)
LEAVES_WITHIN_S = 60


@pytest.fixture
def gpu_stack(run_stack):
    """Return what runs a scheduler and a worker with that engine."""

    def run(*, environ=None, **settings):
        left = []
        config = Config(engine="tensorrt-llm", model=MODEL, slots=4, **settings)
        load = partial(engines.load, config, leave=left.append)
        return installed(**(environ or {})), run_stack(load=load, slots=4)

    return run


def said(events):
    return "".join(event.content for kind, event in events if kind == "delta")


async def test_answers_are_whole(gpu_stack):
    """Text, usage and the reason of its end, with and without stop texts."""
    library, stack = gpu_stack()
    with library:
        async with stack as up:
            edge = up.edge()
            events = await edge.end(edge.start(up.ask("[[text=hello there]]", model="tiny")))
            assert said(events) == "hello there"
            assert events[0][1].resumable
            finished = events[-1][1]
            assert finished.reason == FinishReason.FINISH_REASON_STOP
            assert finished.usage.completion_tokens > 1
            asked = up.ask("[[text=hello there]]", model="tiny", stop=["o t"])
            assert said(await edge.end(edge.start(asked))) == "hell"
            asked = up.ask("story", model="tiny", max_tokens=9)
            events = await edge.end(edge.start(asked))
            assert events[-1][1].reason == FinishReason.FINISH_REASON_LENGTH
            await up.scheduler.until(lambda s: len(s.freed) == 3)


async def test_calls_and_schemas_are_enforced(gpu_stack):
    """The engine is held to them, and the request cannot go on elsewhere."""
    library, stack = gpu_stack()
    with library:
        async with stack as up:
            edge = up.edge()
            asked = up.ask(
                "hi", model="tiny", tools=[WEATHER], tool_choice=REQUIRED, max_tokens=200
            )
            events = await edge.end(edge.start(asked))
            assert not events[0][1].resumable
            calls = [call for kind, event in events if kind == "delta" for call in event.tool_calls]
            assert calls[0].name == "get_weather"
            assert json.loads("".join(call.arguments for call in calls)) == {"city": "Rome"}
            assert events[-1][1].reason == FinishReason.FINISH_REASON_TOOL_CALLS
            schema = ResponseFormat(json_schema=json.dumps(CITY))
            asked = up.ask("hi", model="tiny", response_format=schema, max_tokens=200)
            assert json.loads(said(await edge.end(edge.start(asked)))) == {"city": "Rome"}


async def test_what_is_ignored_is_refused_before_it_is_accepted(gpu_stack):
    """A parameter that the installed version drops is the client's error, by name."""
    library, stack = gpu_stack(environ={"FASTRUN_STANDIN_VERSION": "1.2.1"})
    with library:
        async with stack as up:
            edge = up.edge()
            asked = up.ask("hi", model="tiny")
            asked.sampling.MergeFrom(Sampling(presence_penalty=0.5))
            [(kind, failed)] = await edge.end(edge.start(asked))
            assert kind == "failed"
            assert failed.error.reason == ErrorReason.ERROR_REASON_INVALID_REQUEST
            assert failed.error.message.startswith("presence_penalty is not supported")


async def test_a_dead_engine_is_told_and_the_worker_leaves(gpu_stack):
    """What runs is told that its engine died, so that it may go on elsewhere; nothing new comes."""
    library, stack = gpu_stack()
    with library:
        async with stack as up:
            edge = up.edge()
            running = edge.start(up.ask("story", model="tiny", max_tokens=3000))
            await edge.first_delta(running)
            dying = edge.start(up.ask("[[die=2]]", model="tiny"))
            for stream in (running, dying):
                _, failed = (await edge.end(stream))[-1]
                assert failed.error.reason == ErrorReason.ERROR_REASON_ENGINE_DIED
            await up.scheduler.until(
                lambda s: s.heartbeats[-1].state == WorkerState.WORKER_STATE_DRAINING
            )
            assert await asyncio.wait_for(up.left.get(), LEAVES_WITHIN_S) == 1


async def test_gpus_are_named(gpu_stack):
    """Whoever asks a worker hears what it computes on, and its schedulers are told."""
    library, stack = gpu_stack(environ={"FASTRUN_STANDIN_GPUS": "4"}, tensor_parallel=2)
    with library:
        async with stack as up:
            info = await up.stub.GetInfo(GetInfoRequest())
            assert info.engine == "tensorrt-llm"
            names = [(gpu.name, gpu.memory_bytes) for gpu in info.gpus]
            assert names == [("NVIDIA Stand-in 0", 80 << 30), ("NVIDIA Stand-in 1", 80 << 30)]
            assert up.scheduler.hellos[-1].gpus == info.gpus


async def test_a_worker_that_has_grown_too_large_drains(slow_stack):
    """It finishes what runs, and takes nothing new."""
    edge = slow_stack.edge()
    running = edge.start(slow_stack.ask("[[tokens=50]]"))
    await edge.first_delta(running)
    slow_stack.worker._memory = MemoryBound(1)
    await slow_stack.scheduler.until(
        lambda s: s.heartbeats[-1].state == WorkerState.WORKER_STATE_DRAINING
    )
    assert (await edge.end(running))[-1][0] == "finished"


class WorkerProcess:
    """A worker of its own process, without a scheduler."""

    def __init__(self, process, port):
        self.process, self.port = process, port

    async def events(self, *requests):
        """Return the events of each request; a connection that breaks ends them."""
        async with rpc.channel(f"127.0.0.1:{self.port}") as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            async with asyncio.timeout(LEAVES_WITHIN_S):
                return await asyncio.gather(*(self._events(stub, each) for each in requests))

    async def _events(self, stub, request):
        events, call = [], stub.Generate(request)
        with suppress(grpc.aio.AioRpcError):
            while (event := await call.read()) is not grpc.aio.EOF:
                events.append(event)
        return events

    async def left(self):
        """Wait for the end of the process, and return its status."""
        return await asyncio.wait_for(self.process.wait(), LEAVES_WITHIN_S)


@pytest.fixture
async def worker_process():
    """Return what starts a worker's process; none is left in the end."""
    started = []

    async def make(**environ):
        reader, writer = os.pipe()
        known = {name: each for name, each in os.environ.items() if not name.startswith("FASTRUN_")}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gpu_worker"),
            env={
                **known,
                "PYTHONPATH": str(STANDIN),
                "FASTRUN_WORKER_ENGINE": "tensorrt-llm",
                "FASTRUN_WORKER_MODEL": MODEL,
                "FASTRUN_WORKER_STANDALONE": "true",
                "FASTRUN_WORKER_LISTEN": "127.0.0.1:0",
                "FASTRUN_WORKER_ADMIN_LISTEN": "127.0.0.1:0",
                "FASTRUN_READY_FD": str(writer),
                **environ,
            },
            pass_fds=[writer],
        )
        started.append(process)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            line = await asyncio.to_thread(pipe.readline)
        return WorkerProcess(process, json.loads(line)["ports"]["grpc"])

    yield make
    for each in started:
        if each.returncode is None:
            each.kill()
            await each.wait()


@pytest.mark.parametrize(
    ("script", "environ"),
    [
        ("[[die=3]]", {}),
        ("[[crash=3]]", {}),
        ("[[hang=3]]", {"FASTRUN_WORKER_STALLED_S": "3"}),
        ("story", {"FASTRUN_STANDIN_UNHEALTHY": "2", "FASTRUN_STANDIN_STEP_S": "0.05"}),
    ],
)
async def test_the_process_of_a_dead_engine_ends(worker_process, ask, script, environ):
    """Dead, failing, stuck or unhealthy: what runs is told to go elsewhere, and the process ends."""
    worker = await worker_process(**environ)
    requests = [ask(text, model="tiny", max_tokens=3000) for text in (script, "another")]
    for events in await worker.events(*requests):
        assert events[-1].failed.error.reason == ErrorReason.ERROR_REASON_ENGINE_DIED
    assert await worker.left() == 1


@pytest.mark.parametrize("script", ["[[block]]", "[[sink]]"])
async def test_a_process_whose_loop_hangs_with_its_engine_ends(worker_process, ask, script):
    """A call that never returns holds up everything but the thread that watches."""
    worker = await worker_process(FASTRUN_WORKER_STALLED_S="3")
    await worker.events(ask(script, model="tiny"))
    assert await worker.left() == 1


async def test_a_signal_ends_it_in_order(worker_process, ask):
    """It finishes what runs, shuts the library down, and leaves with status 0."""
    worker = await worker_process(FASTRUN_STANDIN_STEP_S="0.01")
    request = ask("[[tokens=100]]", model="tiny", max_tokens=3000)
    asking = asyncio.ensure_future(worker.events(request))
    await asyncio.sleep(0)
    async with rpc.channel(f"127.0.0.1:{worker.port}") as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        async with asyncio.timeout(LEAVES_WITHIN_S):
            while not (await stub.GetInfo(GetInfoRequest())).slots_in_use:
                await asyncio.sleep(0.005)
    worker.process.send_signal(signal.SIGTERM)
    [events] = await asking
    assert events[-1].WhichOneof("event") == "finished"
    assert await worker.left() == 0


async def test_a_model_that_is_not_there_is_one_sentence(run_stack):
    """What is wrong with a folder is named, before the library is imported."""
    for model, reason in [
        ("", "needs a model"),
        ("tiny", "needs a model"),
        ("tiny=/nowhere", "there is no such folder"),
        (f"tiny={TINY.parent}", r"lacks tokenizer\.json"),
        ("/nowhere/tiny.toml", "cannot be read"),
    ]:
        with pytest.raises(StartError, match=reason):
            await engines.load(Config(engine="tensorrt-llm", model=model))
    with pytest.raises(StartError, match="TensorRT-LLM is missing"):
        await engines.load(Config(engine="tensorrt-llm", model=MODEL))
