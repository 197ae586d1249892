"""The TensorRT-LLM engine over the stand-in: its faults, its ends, and what it must never do."""

import asyncio
import json
import random
import time
from contextlib import asynccontextmanager

import pytest
from engine_outputs import outputs_of
from standin_engine import TINY, installed, load_standin

from gpu_worker.dialect.tokenizer import JsonTokenizer
from gpu_worker.engine.grammar import Choice, Free, GrammarError, Json, Literal, Sequence
from gpu_worker.engine.protocol import (
    EngineDeadError,
    EngineError,
    Finish,
    SamplingParams,
    UnsupportedError,
)
from gpu_worker.engine.tensorrt_llm.batch import SPARE
from gpu_worker.engine.tensorrt_llm.cursor import UNKNOWN_LOGPROB
from gpu_worker.engine.tensorrt_llm.errors import StartupError
from gpu_worker.engine.tensorrt_llm.watch import Limits

LIMIT_S = 60
ENDS = (2, 0)
QUICK = Limits(look_s=0.01, check_interval_s=0.01, last_words_s=0.1)
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}, "kind": {"enum": ["sum", "product"]}},
    "required": ["answer", "kind"],
}


class Subject:
    """An engine, its tokenizer, and the statuses that it wanted to leave with."""

    def __init__(self, engine, left):
        self.engine, self.left = engine, left
        self.tokenizer = JsonTokenizer.from_file(TINY / "tokenizer.json")

    @property
    def executor(self):
        return self.engine._llm._executor

    def prompt(self, text):
        chat = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        return self.tokenizer.encode(chat, special=True)

    def generate(self, text, max_tokens=20, salt="s", grammar=None, resumed=(), **fields):
        fields = {"temperature": 0, "stop_token_ids": ENDS, **fields}
        return outputs_of(
            self.engine,
            [*self.prompt(text), *resumed],
            SamplingParams(max_tokens=max_tokens, **fields),
            cache_salt=salt,
            grammar=grammar,
            resumed=len(resumed),
        )

    async def outputs(self, *arguments, **fields):
        return [output async for output in self.generate(*arguments, **fields)]

    async def tokens(self, *arguments, **fields):
        outputs = await self.outputs(*arguments, **fields)
        return [token for output in outputs for token in output.token_ids]

    async def text(self, *arguments, **fields):
        tokens = await self.tokens(*arguments, **fields)
        return b"".join(map(self.tokenizer.token_bytes, tokens)).decode()

    async def until(self, condition):
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await asyncio.sleep(0.002)

    def start(self, text, **fields):
        return asyncio.ensure_future(self.outputs(text, max_tokens=2000, **fields))

    def nothing_runs(self):
        stats = self.engine.stats()
        return stats.running == stats.waiting == 0 and not self.executor._running


@asynccontextmanager
async def running(*, slots=4, limits=QUICK, environ=None, **arguments):
    left = []
    with installed(**(environ or {})):
        engine = await load_standin(slots=slots, leave=left.append, limits=limits, **arguments)
        executor = engine._llm._executor
        async with asyncio.timeout(LIMIT_S):
            yield Subject(engine, left)
        await engine.close()
        executor.close()  # also where a worker would just have left it


@pytest.fixture
async def subject():
    async with running() as made:
        yield made


async def test_an_abort_storm_leaves_nothing():
    """1,000 requests with logprobs, aborted at any moment: none runs on, and none was aborted late."""
    async with running(slots=16) as subject:
        dice = random.Random(7)

        async def one():
            task = asyncio.ensure_future(
                subject.outputs(f"[[tokens={dice.randrange(40)}]]", max_tokens=50, logprobs=2)
            )
            await asyncio.sleep(dice.random() * 0.1)
            task.cancel()
            await asyncio.wait([task])

        for _ in range(10):
            await asyncio.gather(*(one() for _ in range(100)))
        await subject.until(subject.nothing_runs)
        assert subject.executor.leaked_aborts == 0
        assert subject.engine.stats().kv_blocks_used == 0
        assert await subject.text("[[text=fine]]") == "fine"


async def test_the_engine_never_has_more_than_the_slots(subject):
    """What waits, waits here: a full engine may hang."""
    most = 0

    async def watch():
        nonlocal most
        while True:
            most = max(most, len(subject.executor._running))
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    await asyncio.gather(*(subject.tokens("[[tokens=30]]", max_tokens=50) for _ in range(40)))
    watching.cancel()
    assert 1 <= most <= 4
    assert subject.nothing_runs()


async def test_a_failing_request_fails_alone(subject):
    """A RequestError is the end of its request; the others do not notice."""
    other = subject.start("[[tokens=60]]")
    with pytest.raises(EngineError, match="a script failed this request") as failed:
        await subject.outputs("[[fail=5]]")
    assert not isinstance(failed.value, EngineDeadError)
    assert sum(len(output.token_ids) for output in await other) == 61
    assert subject.executor.leaked_aborts == 0
    assert not subject.left


async def test_a_request_that_the_engine_ends_early_has_failed(subject):
    """A limit of the engine's own is no answer."""
    with pytest.raises(EngineError, match="timeout"):
        await subject.outputs("[[timeout=3]]")
    assert subject.nothing_runs()


@pytest.mark.parametrize(
    ("script", "reason"),
    [("[[die=3]]", "reports RuntimeError"), ("[[crash=3]]", "CppExecutorError")],
)
async def test_a_death_fails_everybody_at_once(subject, script, reason):
    """An executor that dies, silently or not, is found out, and the process ends."""
    others = [subject.start("wait") for _ in range(6)]  # two of them for a slot
    others[0].cancel()
    with pytest.raises(EngineDeadError, match=reason):
        await subject.outputs(script)
    for other in others[1:]:
        with pytest.raises(EngineDeadError, match=reason):
            await other
    with pytest.raises(EngineDeadError):
        subject.engine.health()
    with pytest.raises(EngineDeadError):
        await subject.outputs("more")
    await subject.until(lambda: subject.left)
    assert subject.left == [1]


async def test_a_library_that_cancels_is_dead(subject):
    """Nobody waits for a reader that is no more."""
    waiting = subject.start("wait")
    await subject.until(lambda: subject.engine.stats().context_tokens)
    [request] = subject.engine._batch._running
    request.reader.cancel()
    with pytest.raises(EngineDeadError, match="cancelled the reader"):
        await waiting


async def test_an_engine_that_does_not_answer_at_first_does_not_start():
    """The first token is asked for before anybody else can ask."""
    with (
        installed(FASTRUN_STANDIN_UNHEALTHY="0", FASTRUN_STANDIN_STEP_S="0.3"),
        pytest.raises(StartupError, match=r"does not generate: .*health check fails"),
    ):
        await load_standin(limits=QUICK)


async def test_a_first_token_may_take_long():
    """Kernels are compiled when they are first used; later that long would be too long."""
    with installed(FASTRUN_STANDIN_STEP_S="1.5"):
        limits = Limits(stalled_s=0.5, look_s=0.01, last_words_s=0.1)
        engine = await load_standin(limits=limits)
        executor = engine._llm._executor
        engine.health()
        with pytest.raises(EngineDeadError, match="nothing has come"):
            await anext(outputs_of(engine, [5], SamplingParams(max_tokens=5), cache_salt=""))
        await engine.close()
        executor.close()


async def test_a_stuck_engine_is_dead():
    """It makes no steps, and its health check says that all is well."""
    async with running(limits=Limits(stalled_s=2, look_s=0.01, last_words_s=0.1)) as subject:
        subject.engine.health()
        with pytest.raises(EngineDeadError, match="nothing has come of its requests"):
            await subject.outputs("[[hang=3]]")
        await subject.until(lambda: subject.left)


async def test_slow_steps_are_no_death():
    """Each of them is progress."""
    async with running(limits=Limits(stalled_s=3, look_s=0.01)) as subject:
        assert len(await subject.tokens("[[slow=400]] [[tokens=8]]")) == 9
        subject.engine.health()


async def test_an_unhealthy_engine_is_dead():
    """Its health check is asked all the time."""
    async with running(environ={"FASTRUN_STANDIN_UNHEALTHY": "5"}) as subject:
        with pytest.raises(EngineDeadError, match="its health check fails"):
            await subject.outputs("wait", max_tokens=3000)


async def test_an_abort_that_is_not_confirmed_frees_its_slot():
    """Its reader does not wait for ever, and others take the slot."""
    limits = Limits(look_s=0.01, last_words_s=0.1, abort_s=0.05)
    async with running(limits=limits) as subject:
        for _ in range(SPARE):
            stream = subject.generate("[[deaf]]", max_tokens=3000)
            await anext(stream)
            await stream.aclose()
        assert subject.engine.stats().running == 0
        assert await subject.text("[[text=fine]]") == "fine"
        assert len(subject.executor._running) == SPARE
        stream = subject.generate("[[deaf]]", max_tokens=3000)
        await anext(stream)
        await stream.aclose()
        with pytest.raises(EngineDeadError, match=f"has not ended {SPARE + 1} aborted requests"):
            subject.engine.health()


@pytest.mark.parametrize("script", ["", "[[cut]]"])
async def test_the_stop_token_is_told_once(subject, script):
    """Also where the library tells it, and takes it back in its last step."""
    outputs = await subject.outputs(f"[[text=so it ends]] {script}", logprobs=1)
    tokens = [token for output in outputs for token in output.token_ids]
    assert tokens[-1] in ENDS
    assert not set(tokens[:-1]) & set(ENDS)
    assert b"".join(map(subject.tokenizer.token_bytes, tokens)) == b"so it ends"
    assert sum(len(output.logprobs) for output in outputs) == len(tokens)
    assert outputs[-1].finish is Finish.STOP


async def test_gaps_in_logprobs_are_filled(subject):
    """Each token has its own, and the rest of the answer is as it was."""
    outputs = await subject.outputs("[[tokens=4]] [[gap=2]]", logprobs=2)
    values = [entry.chosen for output in outputs for entry in output.logprobs]
    assert values == [-0.25, -0.25, UNKNOWN_LOGPROB, -0.25, -0.25]
    outputs = await subject.outputs("[[tokens=2]] [[flat]]", logprobs=2)
    assert [entry for output in outputs for entry in output.logprobs[0].top] == []


async def test_outputs_are_held_to_grammars(subject):
    """The grammar reaches the engine as llguidance reads it, thoughts and calls included."""
    answer = Json(json.dumps(ANSWER))
    await subject.engine.compile(answer)
    made = json.loads(await subject.text("[[text=no JSON]]", grammar=answer, max_tokens=99))
    assert made.keys() == {"answer", "kind"}
    assert made["kind"] in {"sum", "product"}
    thought = Sequence((Free("</think>"), Literal("\n"), answer))
    text = await subject.text("[[text=hm</think>]]", grammar=thought, max_tokens=99)
    assert text.startswith("hm</think>\n{")
    either = Choice((Literal("<call>"), Literal("none")))
    assert await subject.text("[[text=none]]", grammar=either) == "none"


async def test_what_no_grammar_can_be_is_refused_before_the_engine(subject):
    """A bad schema has killed engines: it reaches none."""
    for schema, reason in [
        ('{"type": "integer", "minimum": 5, "maximum": 3}', "no value fits"),
        ('{"contains": {"type": "string"}}', "contains"),
        ("{", "is not JSON"),
    ]:
        with pytest.raises(GrammarError, match=reason):
            await subject.engine.compile(Json(schema))
    assert len(subject.engine._llm._params) == 1  # the warm-up


async def test_a_grammar_that_never_compiles_is_refused(subject):
    """It is tried out in a process of its own."""
    patterns = [{"type": "string", "pattern": f"a.{{{n}}}b"} for n in range(1, 24)]
    with pytest.raises(GrammarError, match="too much time or memory"):
        await subject.engine.compile(Json(json.dumps({"allOf": patterns})))
    await subject.engine.compile(Json('{"type": "integer"}'))


async def test_a_greedy_answer_goes_on_where_it_was(subject):
    """Prompt and tokens become the new prompt; penalties count the same."""
    whole = await subject.tokens("story", frequency_penalty=0.5)
    for done in (1, 5, 19):
        rest = await subject.tokens(
            "story", resumed=whole[:done], max_tokens=20 - done, frequency_penalty=0.5
        )
        assert whole[:done] + rest == whole


async def test_an_output_that_is_held_to_a_grammar_does_not_go_on(subject):
    """The library would begin the grammar anew: this is said before, and refused."""
    assert subject.engine.resumable
    assert not subject.engine.resumes_grammars
    with pytest.raises(GrammarError, match="cannot go on"):
        await subject.tokens("story", resumed=[90], grammar=Json("{}"))


async def test_prefixes_are_shared_within_a_salt(subject):
    """What one account has sent is in no other's cache."""
    text = "once upon a time " * 20
    first = await subject.outputs(text)
    again = await subject.outputs(text)
    other = await subject.outputs(text, salt="other")
    assert first[0].cached_tokens == other[0].cached_tokens == 0
    assert again[0].cached_tokens >= 32
    assert subject.engine.stats().cached_tokens == again[0].cached_tokens


async def test_statistics_tell_of_the_cache(subject):
    """Blocks that are used while something runs, and how many there are."""
    stream = subject.generate("wait", max_tokens=3000)
    await anext(stream)
    await subject.until(lambda: subject.engine.stats().kv_blocks_used)
    stats = subject.engine.stats()
    assert (stats.running, stats.kv_blocks_total) == (1, 4096)
    assert stats.context_tokens > 0
    assert stats.prefill_tokens == 0
    await stream.aclose()
    assert subject.engine.stats().kv_blocks_used == 0


async def test_what_the_engine_cannot_hold_never_reaches_it(subject):
    """Such requests have hung it for everybody."""
    for prompt in ([5] * 4096, [5] * 5000, [-1], [10**6], []):
        params = SamplingParams(max_tokens=5)
        with pytest.raises(EngineError):
            await anext(outputs_of(subject.engine, prompt, params, cache_salt=""))
    with pytest.raises(UnsupportedError, match="max_tokens"):
        await subject.outputs("x", max_tokens=0)
    assert len(subject.engine._llm._params) == 1


async def test_an_old_version_serves_with_less():
    """1.2.1 starts, and refuses what it would ignore."""
    async with running(environ={"FASTRUN_STANDIN_VERSION": "1.2.1"}) as subject:
        assert await subject.text("[[text=old]]", logprobs=0) == "old"
        outputs = await subject.outputs("[[tokens=2]]", logprobs=0)
        assert [entry.top for output in outputs for entry in output.logprobs] == [[], [], []]
        with pytest.raises(UnsupportedError, match=r"presence_penalty .* 1\.2\.1"):
            subject.engine.check(SamplingParams(max_tokens=1, presence_penalty=0.1))
        with pytest.raises(UnsupportedError, match=r"presence_penalty"):
            await subject.outputs("x", presence_penalty=0.1)


async def test_arguments_reach_the_constructor():
    """What an operator chooses, and what the adapter needs."""
    async with running(
        slots=5, tensor_parallel=2, tokens_per_step=512, kv_cache_fraction=0.5
    ) as subject:
        args = subject.engine._llm.args
        assert (args.tensor_parallel_size, args.max_num_tokens) == (2, 512)
        assert args.max_batch_size == 5 + SPARE
        assert args.enable_chunked_prefill
        assert args.guided_decoding_backend == "llguidance"
        assert args.kv_cache_config.free_gpu_memory_fraction == 0.5
        assert args.max_seq_len == subject.engine.context_length == 4096
        prompt = "word " * 1000  # more than a step takes
        assert await subject.tokens(prompt, max_tokens=2)


async def test_closing_shuts_the_library_down(subject):
    """Once, with nothing left running; the process is ended if that does not end it."""
    stream = subject.start("wait")
    await subject.until(lambda: subject.engine.stats().running)
    executor = subject.executor
    await subject.engine.close()
    await subject.engine.close()
    assert executor.doing_shutdown
    with pytest.raises(EngineDeadError, match="closed"):
        await stream
    await subject.until(lambda: subject.left)
    assert subject.left == [0]


async def test_a_dead_library_is_not_shut_down(subject):
    """It would wait for ranks that answer nobody."""
    with pytest.raises(EngineDeadError):
        await subject.outputs("[[die=1]]")
    executor = subject.executor
    began = time.monotonic()
    await subject.engine.close()
    assert not executor.doing_shutdown
    assert time.monotonic() >= began


async def test_a_model_that_cannot_be_loaded_is_one_sentence():
    """The library's own reason is passed on."""
    with installed(), pytest.raises(StartupError, match=r"load model 'tiny': dtype: unknown"):
        await load_standin(kv_cache_dtype="fp3")
