"""One request, from its first event to its last, while the engine takes its time to let go."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import (
    Accepted,
    ChatMessage,
    Delta,
    Finished,
    FinishReason,
    GenerateRequest,
    Role,
    Sampling,
)
from gpu_worker import engines
from gpu_worker.config import Config
from gpu_worker.engine.protocol import EngineDeadError
from gpu_worker.engine.scripted import ScriptedEngine
from gpu_worker.frames import Frames
from gpu_worker.generation import Generation


class SlowToLetGo(ScriptedEngine):
    """Holds what has ended until it is told to let go."""

    def __init__(self):
        super().__init__()
        self.holds = asyncio.Event()
        self.may_let_go = asyncio.Event()

    async def generate(self, *args, **options):
        try:
            await super().generate(*args, **options)
        finally:
            self.holds.set()
            await self.may_let_go.wait()


class Run:
    """A request that the engine has ended and not let go of."""

    def __init__(self, engine, generation, frames):
        self.engine = engine
        self.generation = generation
        self._frames = frames
        self._task = asyncio.create_task(generation.run())

    def told(self):
        """Take what has been told since the last time."""
        frame = self._frames.take()
        events = [item.event for item in frame.items] if frame else []
        return [getattr(event, event.WhichOneof("event")) for event in events]

    async def still_runs(self):
        """Whether it does after all that was due has happened."""
        for _ in range(3):
            await asyncio.sleep(0)
        return not self._task.done()

    async def outcome(self):
        """Let go of it, and return what it came to."""
        self.engine.may_let_go.set()
        return await self._task


@pytest.fixture
async def run():
    """Run a request with a stop text until the engine has ended it; with changes of its model."""
    executor = ThreadPoolExecutor(1)
    engine = SlowToLetGo()
    _, model = await engines.load(Config(engine="scripted", standalone=True))

    async def begin(**changes):
        request = GenerateRequest(
            request_id="r",
            model=model.card.model,
            messages=[ChatMessage(role=Role.ROLE_USER, content="[[text=well ENDless]]")],
            sampling=Sampling(temperature=0),
            stop=["END"],
        )
        frames = Frames(lambda: None, later=lambda *_: None)
        generation = Generation(
            request,
            frames.events(1),
            engine=engine,
            model=msgspec.structs.replace(model, **changes),
            executor=executor,
        )
        run = Run(engine, generation, frames)
        await engine.holds.wait()
        return run

    yield begin
    await engine.close()
    executor.shutdown()


async def test_a_crash_of_ours_holds_its_slot_as_long_as_the_engine_does(run):
    """Who aborts what has crashed makes nobody forget that the engine still has it."""

    def unknown(_):
        raise KeyError("a bug")

    crashed = await run(token_bytes=unknown)
    crashed.generation.abort()
    assert await crashed.still_runs()
    outcome = await crashed.outcome()
    assert outcome.end == "crashed"
    _, failed = crashed.told()
    assert failed.error.reason == ErrorReason.ERROR_REASON_INTERNAL


@pytest.mark.parametrize("cause", ["the engine dies", "a drain runs out of time"])
async def test_what_was_told_in_full_neither_fails_nor_moves(run, cause):
    """It has ended well, however long the engine holds it, and nobody does it again elsewhere."""
    complete = await run()
    if cause == "the engine dies":
        complete.generation.fail(EngineDeadError("it died"))
    else:
        complete.generation.move()
        complete.generation.told_to_move()
    accepted, delta, finished = complete.told()
    assert accepted.prompt_tokens == finished.usage.prompt_tokens
    assert delta.content == "well "
    assert finished.reason == FinishReason.FINISH_REASON_STOP
    assert finished.usage.completion_tokens == len(delta.token_ids)
    outcome = await complete.outcome()
    assert outcome.end == "stop"
    assert complete.told() == []


async def test_the_end_of_an_answer_waits_for_no_engine_that_does_not_let_go(run):
    """It is told once the engine has had the time of a step, and its slot is held on."""
    complete = await run()
    events = complete.told()
    while not events or not isinstance(events[-1], Finished):
        await asyncio.sleep(0)
        events += complete.told()
    assert [type(each) for each in events] == [Accepted, Delta, Finished]
    assert await complete.still_runs()
    outcome = await complete.outcome()
    assert (outcome.end, outcome.usage) == ("stop", events[-1].usage)
    assert complete.told() == []


async def test_what_cannot_be_sent_ends_its_request(run):
    """It is told of as a fault of ours, once, though it had ended well, and its slot is let go."""
    broken = await run()
    broken.generation._events.delta("\ud800", [1])
    accepted, failed = broken.told()
    assert accepted.prompt_tokens
    assert failed.error.reason == ErrorReason.ERROR_REASON_INTERNAL
    outcome = await broken.outcome()
    assert outcome.end == "crashed"
    assert outcome.usage is not None
    assert broken.told() == []


async def test_an_end_that_cannot_be_told_is_told_as_a_fault(run, monkeypatch):
    """An end that no message takes neither leaves its client waiting nor holds its slot."""
    broken = await run()
    monkeypatch.setattr("gpu_worker.frames.Events.finished", None)
    assert (await broken.outcome()).end == "crashed"
    assert broken.told()[-1].error.reason == ErrorReason.ERROR_REASON_INTERNAL
