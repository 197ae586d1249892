"""What every engine does, run over every engine that runs here."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable

import pytest
from engine_outputs import outputs_of
from standin_engine import installed, load_standin

from gpu_worker.dialect.tokenizer import JsonTokenizer, Tokenizer
from gpu_worker.engine.cpu.loading import load_cpu_engine
from gpu_worker.engine.cpu.preparation import PreparedModel
from gpu_worker.engine.protocol import (
    Engine,
    EngineDeadError,
    EngineError,
    Finish,
    SamplingParams,
    StepOutput,
)
from gpu_worker.engine.scripted import ByteTokenizer, ScriptedEngine

SLOTS = 4
LIMIT_S = 30


class Subject:
    """An engine under test and its tokenizer."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer):
        self.engine = engine
        self.tokenizer = tokenizer

    def prompt(self, text: str = "Count from 17 to 40.") -> list[int]:
        chat = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        return self.tokenizer.encode(chat, special=True)

    def generate(self, prompt=None, max_tokens=12, resumed=0, **fields):
        prompt = self.prompt() if prompt is None else prompt
        sampling = SamplingParams(max_tokens=max_tokens, **fields)
        return outputs_of(self.engine, prompt, sampling, cache_salt="", resumed=resumed)

    async def outputs(self, *arguments, **fields):
        return [output async for output in self.generate(*arguments, **fields)]

    async def tokens(self, *arguments, **fields):
        outputs = await self.outputs(*arguments, **fields)
        return [token for output in outputs for token in output.token_ids]

    async def until(self, condition: Callable[[], bool]):
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await asyncio.sleep(0.001)

    def is_idle(self) -> bool:
        stats = self.engine.stats()
        held = stats.kv_blocks_used + stats.context_tokens + stats.prefill_tokens
        return stats.running == stats.waiting == held == 0


@pytest.fixture
def standin():
    """The stand-in for TensorRT-LLM, installed."""
    with installed():
        yield


@pytest.fixture(params=["cpu", "scripted", "tensorrt-llm"])
async def subject(
    request: pytest.FixtureRequest, tiny: PreparedModel, standin: None
) -> AsyncIterator[Subject]:
    """Each engine with the same few slots."""
    if request.param == "tensorrt-llm":
        engine = await load_standin(slots=SLOTS)
        made = Subject(engine, JsonTokenizer.from_file(tiny.tokenizer))
    elif request.param == "cpu":
        engine = await asyncio.to_thread(load_cpu_engine, tiny, slots=SLOTS)
        made = Subject(engine, JsonTokenizer.from_file(tiny.tokenizer))
    else:
        made = Subject(
            ScriptedEngine(slots=SLOTS, context_length=4096, seconds_per_token=0.001),
            ByteTokenizer(),
        )
    async with asyncio.timeout(LIMIT_S):
        yield made
        await made.engine.close()


async def test_says_what_it_is(subject: Subject):
    """An engine knows its name, its slots, its context, and what it takes of a machine."""
    takes = {"cpu": (0, False), "scripted": (0, False), "tensorrt-llm": (1, True)}
    assert (subject.engine.gpus, subject.engine.grows) == takes[subject.engine.name]
    assert (subject.engine.slots, subject.engine.context_length) == (SLOTS, 4096)
    subject.engine.health()


async def test_says_what_it_has_to_read_and_holds(subject: Subject):
    """A prompt counts as to be read until its first token comes, and then as held with its answer."""
    prompt = subject.prompt()
    streams = [subject.generate(prompt, max_tokens=2000) for _ in range(SLOTS + 1)]
    first = [asyncio.create_task(anext(stream)) for stream in streams]
    await asyncio.gather(*first[:SLOTS])
    stats = subject.engine.stats()
    assert stats.prefill_tokens == len(prompt)  # of the one that has no slot
    assert stats.context_tokens >= SLOTS * len(prompt)
    first[SLOTS].cancel()
    await asyncio.gather(*first, return_exceptions=True)
    for stream in streams:
        await stream.aclose()
    await subject.until(subject.is_idle)


async def test_ends_at_max_tokens(subject: Subject):
    """A generation has exactly max_tokens tokens and says that they were too few."""
    outputs = await subject.outputs(max_tokens=7)
    assert sum(len(output.token_ids) for output in outputs) == 7
    assert [output.finish for output in outputs][-1] is Finish.LENGTH
    assert all(output.finish is None for output in outputs[:-1])


async def test_ends_after_a_stop_token(subject: Subject):
    """The first stop token that is generated is the last token."""
    tokens = await subject.tokens(temperature=0)
    stop = tokens[4]
    stopped = await subject.outputs(temperature=0, stop_token_ids=(stop, 10**6))
    ids = [token for output in stopped for token in output.token_ids]
    assert ids == tokens[: tokens.index(stop) + 1]
    assert stopped[-1].finish is Finish.STOP


async def test_seed_decides(subject: Subject):
    """The same seed repeats a generation; another seed gives another."""
    first = await subject.tokens(temperature=2.0, seed=1)
    assert first == await subject.tokens(temperature=2.0, seed=1)
    assert first != await subject.tokens(temperature=2.0, seed=2)


async def test_greedy_needs_no_seed(subject: Subject):
    """At temperature 0, and with top_p 0, the seed does not matter."""
    first = await subject.tokens(temperature=0, seed=1)
    assert first == await subject.tokens(temperature=0, seed=2)


async def test_concurrent_equals_alone(subject: Subject):
    """What else runs changes nothing about a generation."""
    texts = ["Hello", "What is 7 + 12?", "Count from 3 to 30.", "Show me an animal."] * 3
    cases = [
        (subject.prompt(text), {"temperature": (at % 3) / 2, "seed": at, "max_tokens": 5 + 3 * at})
        for at, text in enumerate(texts)
    ]
    alone = [await subject.tokens(prompt, **fields) for prompt, fields in cases]
    together = await asyncio.gather(*(subject.tokens(prompt, **f) for prompt, f in cases))
    assert alone == together


async def test_slots_are_never_exceeded(subject: Subject):
    """More requests than slots wait, and all finish."""
    most = 0

    async def watch():
        nonlocal most
        while True:
            most = max(most, subject.engine.stats().running)
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    results = await asyncio.gather(*(subject.tokens(max_tokens=20) for _ in range(3 * SLOTS)))
    watcher.cancel()
    assert [len(result) for result in results] == [20] * 3 * SLOTS
    assert 1 <= most <= SLOTS
    assert subject.is_idle()


async def test_abort_while_decoding(subject: Subject):
    """A generation that is closed after some tokens holds nothing any more."""
    stream = subject.generate(max_tokens=3000)
    await anext(stream)
    await anext(stream)
    await stream.aclose()
    assert subject.is_idle()


async def test_abort_before_the_first_token(subject: Subject):
    """A generation whose reader is cancelled in prefill holds nothing any more."""
    prompt = subject.prompt("Repeat after me: " + "zuvi marota fen " * 100)
    reader = asyncio.create_task(subject.tokens(prompt, max_tokens=1000))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert subject.is_idle()


async def test_abort_while_waiting(subject: Subject):
    """A request that waits for a slot can be aborted, and others run on."""
    readers = [asyncio.create_task(subject.tokens(max_tokens=2000)) for _ in range(SLOTS)]
    await subject.until(lambda: subject.engine.stats().running == SLOTS)
    waiting = asyncio.create_task(subject.tokens())
    await subject.until(lambda: subject.engine.stats().waiting == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (subject.engine.stats().running, subject.engine.stats().waiting) == (SLOTS, 0)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    assert subject.is_idle()


async def test_waiting_request_takes_a_slot_that_frees(subject: Subject):
    """An abort lets the next request run."""
    readers = [asyncio.create_task(subject.tokens(max_tokens=2000)) for _ in range(SLOTS)]
    await subject.until(lambda: subject.engine.stats().running == SLOTS)
    waiting = asyncio.create_task(subject.tokens(max_tokens=3))
    await subject.until(lambda: subject.engine.stats().waiting == 1)
    readers[0].cancel()
    assert len(await waiting) == 3
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)


@pytest.mark.parametrize("end", ["enough", "raises"])
async def test_a_taker_ends_its_own_request_and_no_other(subject: Subject, end: str):
    """Once it has enough, or has failed, it is asked no more; the steps go on for all others."""
    alone = await subject.tokens(max_tokens=24, temperature=0)
    taken: list[list[int]] = []

    def take(output: StepOutput) -> bool:
        taken.append(output.token_ids)
        if len(taken) == 3 and end == "raises":
            raise LookupError("a bug")
        return len(taken) == 3

    async def ends() -> None:
        sampling = SamplingParams(max_tokens=2000)
        await subject.engine.generate(subject.prompt(), sampling, take=take, cache_salt="")

    beside = asyncio.create_task(subject.tokens(max_tokens=24, temperature=0))
    if end == "raises":
        with pytest.raises(LookupError):
            await ends()
    else:
        await ends()
    assert await beside == alone
    assert len(taken) == 3
    await subject.until(subject.is_idle)


async def test_many_aborts_at_random_moments(subject: Subject):
    """Readers that leave at any moment leave nothing and disturb nobody."""
    prompt = subject.prompt("Hello")
    expected = await subject.tokens(prompt, temperature=0, max_tokens=30)

    async def leave(after: int):
        reader = asyncio.create_task(subject.tokens(max_tokens=500))
        await asyncio.sleep(after / 1000)
        reader.cancel()
        await asyncio.wait([reader])

    leaving = [asyncio.create_task(leave(after)) for after in range(60)]
    staying = [subject.tokens(prompt, temperature=0, max_tokens=30) for _ in range(6)]
    assert await asyncio.gather(*staying) == [expected] * 6
    await asyncio.gather(*leaving)
    assert subject.is_idle()


async def test_counts_tokens(subject: Subject):
    """Totals count what was computed for whom."""
    prompt = subject.prompt()
    await subject.tokens(prompt, max_tokens=5)
    await subject.tokens(prompt, max_tokens=6)
    stats = subject.engine.stats()
    assert (stats.prompt_tokens, stats.completion_tokens) == (2 * len(prompt), 11)


async def test_logprobs_come_with_each_token(subject: Subject):
    """Each token has its own logprob and as many alternatives as were asked for, all finite."""
    outputs = await subject.outputs(max_tokens=6, logprobs=3, temperature=0)
    reported = [entry for output in outputs for entry in output.logprobs or []]
    assert len(reported) == 6
    for entry in reported:
        values = [value for _, value in entry.top]
        assert len(entry.top) == 3
        assert values == sorted(values, reverse=True)
        assert all(math.isfinite(value) and value <= 1e-3 for value in [entry.chosen, *values])
    assert all(output.logprobs is None for output in await subject.outputs(max_tokens=2))


async def test_context_bounds_the_completion(subject: Subject):
    """A completion ends where the context does; a prompt as long as the context is refused."""
    prompt = [5] * (4096 - 3)
    assert len(await subject.tokens(prompt, max_tokens=50)) == 3
    with pytest.raises(EngineError):
        await subject.tokens([5] * 4096)
    assert subject.is_idle()


@pytest.mark.parametrize("done", [1, 7, 23])
async def test_resumed_generation_continues(subject: Subject, done: int):
    """A generation that is begun anew behind some of its tokens goes on as it would have.

    TensorRT-LLM's random numbers begin anew, so that it does so at temperature 0 only.
    """
    prompt = subject.prompt()
    fields = {
        "temperature": 0 if subject.engine.name == "tensorrt-llm" else 1.5,
        "seed": 5,
        "frequency_penalty": 0.7,
        "repetition_penalty": 1.2,
    }
    whole = await subject.tokens(prompt, max_tokens=24, **fields)
    outputs = await subject.outputs(
        [*prompt, *whole[:done]], max_tokens=24 - done, resumed=done, **fields
    )
    assert whole[done:] == [token for output in outputs for token in output.token_ids]
    assert outputs[-1].finish is Finish.LENGTH


@pytest.mark.parametrize("end", ["length", "stop token", "window"])
async def test_resumed_generation_may_be_over(subject: Subject, end: str):
    """What is the whole already gets its finish, as it had, and no token."""
    prompt = [5] * (4096 - 3) if end == "window" else subject.prompt()
    fields = {"temperature": 0, "max_tokens": 50 if end == "window" else 3}
    whole = await subject.tokens(prompt, **fields)
    if end == "stop token":
        fields |= {"stop_token_ids": (whole[-1],), "max_tokens": 9}
    left = fields["max_tokens"] - len(whole)
    outputs = await subject.outputs(
        [*prompt, *whole], resumed=len(whole), **fields | {"max_tokens": left}
    )
    finish = Finish.STOP if end == "stop token" else Finish.LENGTH
    assert [(output.token_ids, output.finish) for output in outputs] == [([], finish)]
    assert subject.is_idle()


async def test_resumed_generation_needs_a_prompt(subject: Subject):
    """Not all tokens can be completion."""
    with pytest.raises(EngineError):
        await subject.tokens([5, 6], resumed=2)


async def test_close_ends_everything(subject: Subject):
    """Closing fails what runs and whatever comes later."""
    stream = subject.generate(max_tokens=3000)
    await anext(stream)
    await subject.engine.close()
    with pytest.raises(EngineDeadError):
        [output async for output in stream]
    with pytest.raises(EngineDeadError):
        await subject.tokens()
    with pytest.raises(EngineDeadError):
        subject.engine.health()
