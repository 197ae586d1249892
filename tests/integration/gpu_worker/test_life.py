"""How a worker starts, drains, dies and answers tools, over real gRPC and as a real process."""

import asyncio
import json
import os
import signal
import sys
import threading
import urllib.error
import urllib.request
from functools import partial

import grpc
import pytest

from fastrun.service import rpc
from fastrun.service.lifecycle import StartError
from fastrun.v1 import worker_pb2_grpc
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import FinishReason
from fastrun.v1.scheduler_pb2 import WorkerState
from fastrun.v1.worker_pb2 import EdgeFrame, EdgeFrameItem, GetInfoRequest, Ping, Start
from gpu_worker import engines
from gpu_worker.config import Config
from gpu_worker.engine.grammar import GrammarError
from gpu_worker.service import WorkerProcess


async def get(stack, path):
    """Return status and body of the admin port."""

    def fetch():
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{stack.ports['admin']}{path}"
            ) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(fetch)


async def test_generate_without_lease_when_standalone(run_stack, ask):
    """A tool gets all events of one request from a worker that takes no leases."""
    async with run_stack(standalone=True) as stack:
        request = ask("[[text=hi]]")
        kinds = [event.WhichOneof("event") async for event in stack.stub.Generate(request)]
        assert kinds[0] == "accepted"
        assert kinds[-1] == "finished"
        request.stop.append("")
        events = [event async for event in stack.stub.Generate(request)]
        assert [event.failed.error.reason for event in events] == [
            ErrorReason.ERROR_REASON_INVALID_REQUEST
        ]


async def test_generate_needs_a_lease_with_a_scheduler(stack, ask):
    """Beside a scheduler a tool needs a lease as everybody does."""
    events = [event async for event in stack.stub.Generate(ask())]
    assert [event.failed.error.reason for event in events] == [
        ErrorReason.ERROR_REASON_LEASE_REFUSED
    ]


async def test_cancelling_generate_aborts(slow_stack):
    """A tool that hangs up frees its slot."""
    call = slow_stack.stub.Generate(slow_stack.ask())
    await call.read()
    call.cancel()
    await slow_stack.scheduler.until(lambda s: s.freed)
    assert (await slow_stack.stub.GetInfo(GetInfoRequest())).slots_in_use == 0


async def test_get_info_describes_the_worker(stack):
    """GetInfo says who the worker is and what it serves."""
    info = await stack.stub.GetInfo(GetInfoRequest())
    hello = stack.scheduler.hellos[0]
    assert (info.worker_id, info.instance_id) == (hello.worker_id, hello.instance_id)
    assert info.model == hello.model
    assert (info.model.model, info.model.context_length) == ("scripted", 8192)
    assert (info.slots, info.slots_in_use, info.engine) == (4, 0, "scripted")
    assert info.version
    assert hello.address == f"127.0.0.1:{stack.ports['grpc']}"


async def test_drain_finishes_what_was_granted(slow_stack):
    """A draining worker says so at once, honours leases that are out, and then takes nothing."""
    edge = slow_stack.edge()
    running = edge.start(slow_stack.ask("[[tokens=40]]"))
    await edge.first_delta(running)
    late = slow_stack.ask("[[tokens=40]]")
    draining = asyncio.create_task(slow_stack.worker.drain())
    await slow_stack.scheduler.until(
        lambda s: s.heartbeats[-1].state == WorkerState.WORKER_STATE_DRAINING
    )
    late_id = edge.start(late)
    for stream_id in (running, late_id):
        assert (await edge.end(stream_id))[-1][1].reason == FinishReason.FINISH_REASON_STOP
    await draining
    await slow_stack.scheduler.until(lambda s: len(s.freed) == 2)
    events = await edge.end(edge.start(slow_stack.ask()))
    assert events[0][1].error.reason == ErrorReason.ERROR_REASON_DRAINING
    assert (await get(slow_stack, "/readyz"))[0] == 503


async def test_a_dead_engine_ends_the_process(slow_stack):
    """When the engine dies all requests fail at once, and the process leaves with status 1."""
    edge = slow_stack.edge()
    others = [edge.start(slow_stack.ask()) for _ in range(2)]
    killer = edge.start(slow_stack.ask("[[die=3]]"))
    for stream_id in (*others, killer):
        kind, failed = (await edge.end(stream_id))[-1]
        assert kind == "failed"
        assert failed.error.reason == ErrorReason.ERROR_REASON_ENGINE_DIED
    assert (await get(slow_stack, "/healthz"))[0] == 503
    assert await asyncio.wait_for(slow_stack.left.get(), 10) == 1
    # Nobody has asked for it, unlike a drain.
    await slow_stack.scheduler.until(lambda s: s.heartbeats[-1].engine_dead)
    assert not slow_stack.scheduler.heartbeats[0].engine_dead


async def test_an_unexpected_error_is_the_requests_own(run_stack):
    """A bug in the path of one request is its internal error, and the worker goes on."""
    config = Config(engine="scripted", scripted_tokens_per_s=0.0)
    engine, model = await engines.load(config)
    generate = engine.generate

    def broken(token_ids, sampling, **options):
        if options["cache_salt"] == "break":
            raise RuntimeError("a bug")
        return generate(token_ids, sampling, **options)

    engine.generate = broken

    async def load():
        return engine, model

    async with run_stack(load=load) as stack:
        edge = stack.edge()
        events = await edge.end(edge.start(stack.ask(cache_salt="break")))
        assert events[-1][1].error.reason == ErrorReason.ERROR_REASON_INTERNAL
        assert (await edge.end(edge.start(stack.ask("[[tokens=1]]"))))[-1][0] == "finished"


async def test_a_grammar_that_outgrows_its_limits_is_the_requests_fault(run_stack):
    """Found out in mid-generation, it is refused like any bad request and never tried elsewhere."""
    config = Config(engine="scripted", scripted_tokens_per_s=0.0)
    engine, model = await engines.load(config)
    generate = engine.generate

    async def outgrown(token_ids, sampling, *, take, **options):
        def take_one(output):
            take(output)
            return True

        await generate(token_ids, sampling, take=take_one, **options)
        raise GrammarError("the schema is too large")

    engine.generate = outgrown

    async def load():
        return engine, model

    async with run_stack(load=load) as stack:
        edge = stack.edge()
        _, failed = (await edge.end(edge.start(stack.ask())))[-1]
        assert failed.error.reason == ErrorReason.ERROR_REASON_INVALID_REQUEST
        assert failed.error.message == "the schema is too large"


async def test_a_long_prompt_does_not_hold_up_the_loop(run_stack, monkeypatch):
    """While a long prompt is tokenized in its thread, other requests come and go."""
    config = Config(engine="scripted", scripted_tokens_per_s=0.0, scripted_context=100_000)
    engine, model = await engines.load(config)
    entered, release = threading.Event(), threading.Event()
    token_ids = model.encoder.token_ids

    def slow(rendered):
        if len(rendered.text) > 8192:
            entered.set()
            release.wait(10)
        return token_ids(rendered)

    monkeypatch.setattr(model.encoder, "token_ids", slow)

    async def load():
        return engine, model

    async with run_stack(load=load) as stack:
        edge = stack.edge()
        long = edge.start(stack.ask("[[tokens=1]]" + "x" * 20_000))
        assert await asyncio.to_thread(entered.wait, 10)
        assert (await edge.end(edge.start(stack.ask("[[tokens=1]]"))))[-1][0] == "finished"
        assert edge.events[long] == []
        release.set()
        assert (await edge.end(long))[-1][0] == "finished"


# With gRPC's own windows growing, megabytes would lie there before the worker feels the reader.
SMALL_WINDOW = [("grpc.http2.lookahead_bytes", 65_535), ("grpc.http2.bdp_probe", 0)]


async def test_a_slow_reader_gets_fewer_and_larger_frames(run_stack):
    """What an edge does not read gathers in few items, and nothing is lost or doubled."""
    count = 2000
    async with (
        run_stack(slots=8, scripted_tokens_per_s=2000.0) as stack,
        grpc.aio.insecure_channel(
            f"127.0.0.1:{stack.ports['grpc']}", options=SMALL_WINDOW
        ) as channel,
    ):
        call = worker_pb2_grpc.WorkerServiceStub(channel).Attach()
        requests = [stack.ask(f"[[tokens={count}]]") for _ in range(8)]
        starts = [Start(stream_id=n, request=one) for n, one in enumerate(requests, start=1)]
        await call.write(EdgeFrame(items=[EdgeFrameItem(start=start) for start in starts]))
        # Nothing is read until the worker has made all tokens, however long that takes it.
        made = asyncio.ensure_future(stack.scheduler.until(lambda s: len(s.freed) == 8))
        while not (await asyncio.wait({made}, timeout=1))[0]:
            await call.write(EdgeFrame(items=[EdgeFrameItem(ping=Ping())]))
        await made
        frames, tokens, ended = 0, dict.fromkeys(range(1, 9), 0), 0
        while ended < 8:
            frame = await asyncio.wait_for(call.read(), 20)
            frames += 1
            for item in frame.items:
                if item.stream_id:
                    tokens[item.stream_id] += len(item.event.delta.token_ids)
                    ended += item.event.WhichOneof("event") == "finished"
        assert set(tokens.values()) == {count + 1}
        assert frames < count / 2
        call.cancel()


async def test_readiness_needs_model_and_scheduler(stack):
    """/readyz follows the schedulers' welcome; /metrics counts."""
    assert await get(stack, "/readyz") == (200, "ok\n")
    edge = stack.edge()
    await edge.end(edge.start(stack.ask("[[tokens=2]]")))
    await stack.scheduler.until(lambda s: s.freed)
    _, metrics = await get(stack, "/metrics")
    assert 'fastrun_worker_requests_total{end="stop"} 1.0' in metrics
    assert 'fastrun_worker_tokens_total{kind="completion"} 3.0' in metrics
    await stack.scheduler.stop()
    while (await get(stack, "/readyz"))[0] != 503:
        await asyncio.sleep(0.05)
    assert (await get(stack, "/healthz"))[0] == 200


async def test_a_model_that_is_not_there_is_one_sentence(tmp_path):
    """A worker whose model does not exist says what to do."""
    config = Config(
        listen="127.0.0.1:0",
        admin_listen="127.0.0.1:0",
        standalone=True,
        model=f"mine={tmp_path / 'missing.gguf'}",
    )
    worker = WorkerProcess(config, partial(engines.load, config), leave=print)
    with pytest.raises(StartError, match=r"missing\.gguf"):
        await worker.start()
    await worker.stop()


async def test_a_worker_without_schedulers_says_so():
    """A worker that could never get a lease does not start."""
    worker = WorkerProcess(Config(), partial(engines.load, Config()), leave=print)
    with pytest.raises(StartError, match="FASTRUN_WORKER_SCHEDULER_ADDRESSES"):
        await worker.start()
    await worker.stop()


async def test_the_process_drains_on_sigterm(ask):
    """A worker process finishes what runs after SIGTERM and leaves with status 0."""
    reader, writer = os.pipe()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FASTRUN_")},
        "FASTRUN_WORKER_ENGINE": "scripted",
        "FASTRUN_WORKER_STANDALONE": "true",
        "FASTRUN_WORKER_LISTEN": "127.0.0.1:0",
        "FASTRUN_WORKER_ADMIN_LISTEN": "127.0.0.1:0",
        "FASTRUN_READY_FD": str(writer),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpu_worker", env=environment, pass_fds=[writer]
    )
    os.close(writer)
    with os.fdopen(reader) as pipe:
        ports = json.loads(await asyncio.to_thread(pipe.readline))["ports"]
    async with rpc.channel(f"127.0.0.1:{ports['grpc']}") as channel:
        call = worker_pb2_grpc.WorkerServiceStub(channel).Generate(ask("[[tokens=20]]"))
        await call.read()
        process.send_signal(signal.SIGTERM)
        kinds = []
        while (event := await call.read()) is not grpc.aio.EOF:
            kinds.append(event.WhichOneof("event"))
        assert kinds[-1] == "finished"
    assert await asyncio.wait_for(process.wait(), 20) == 0
