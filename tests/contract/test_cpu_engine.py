"""The CPU engine on a real model: what float32 has to guarantee."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from engine_outputs import outputs_of

from gpu_worker.dialect.tokenizer import JsonTokenizer
from gpu_worker.engine.cpu import loading
from gpu_worker.engine.cpu.engine import CpuEngine
from gpu_worker.engine.cpu.loading import load_cpu_engine
from gpu_worker.engine.cpu.model_source import ModelSource
from gpu_worker.engine.cpu.network import load_network
from gpu_worker.engine.cpu.preparation import PreparedModel, prepare
from gpu_worker.engine.cpu.sampler import RowSampler
from gpu_worker.engine.errors import ModelError
from gpu_worker.engine.guidance.trial import Trial
from gpu_worker.engine.protocol import EngineDeadError, EngineError, SamplingParams

TINY = Path(__file__).parents[1] / "models/tiny/tiny.gguf"
# Deterministic facts of the tiny model: tests/models/tiny/README.md.
GREETING = "Hello! How can I help you today?"
QUESTIONS = [
    "Hello",
    "What is 7 + 12?",
    "Say hello in Japanese.",
    "Count from 17 to 40.",
    "Tell me a story about Alice and a boat.",
    "Repeat after me: zuvi marota fen",
]


@pytest.fixture(scope="module")
def tokenizer(tiny: PreparedModel) -> JsonTokenizer:
    return JsonTokenizer.from_file(tiny.tokenizer)


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> PreparedModel:
    """The tiny model, for the other precision."""
    source = ModelSource("tiny", TINY)
    return prepare(source, precision="fast", cache=tmp_path_factory.mktemp("fast"))


@pytest.fixture
async def load(tiny: PreparedModel) -> AsyncIterator[Callable[..., CpuEngine]]:
    """Load the tiny model with some settings; closed at the end."""
    engines = []

    def load(model: PreparedModel = tiny, **settings) -> CpuEngine:
        engines.append(load_cpu_engine(model, **settings))
        return engines[-1]

    async with asyncio.timeout(60):
        yield load
        for engine in engines:
            await engine.close()


@pytest.fixture
def prompt(tokenizer: JsonTokenizer) -> Callable[..., list[int]]:
    def encode(text: str, system: str = "") -> list[int]:
        turns = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
        turns += f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        return tokenizer.encode(turns + "<think>\n\n</think>\n\n", special=True)

    return encode


async def run(engine, ids, salt="", max_tokens=40, **fields):
    fields = {"temperature": 0, "stop_token_ids": (0, 2), **fields}
    tokens, cached = [], set()
    async for output in outputs_of(
        engine, ids, SamplingParams(max_tokens=max_tokens, **fields), cache_salt=salt
    ):
        tokens += output.token_ids
        cached.add(output.cached_tokens)
    (count,) = cached
    return tokens, count


async def test_answers_as_the_model_was_trained(load, prompt, tokenizer):
    """The whole way from text to text gives what the model is known to say."""
    tokens, _ = await run(load(), prompt("Hello"))
    assert b"".join(map(tokenizer.token_bytes, tokens)).decode() == GREETING


@pytest.mark.parametrize("temperature", [0, 1.0])
async def test_answers_do_not_depend_on_company_cache_chunks_or_preemption(
    load, prompt, temperature
):
    """Alone, batched, prefix-cached, chunked, and preempted and recomputed: the same tokens."""
    prompts = [prompt(text, "You are a helpful assistant. " * 8) for text in QUESTIONS]
    engine = load()
    asked = {"temperature": temperature, "seed": 3, "max_tokens": 60, "stop_token_ids": ()}
    # A salt each, so that nothing is cached.
    alone = [(await run(engine, p, f"alone {at}", **asked))[0] for at, p in enumerate(prompts)]

    batched = await asyncio.gather(*(run(engine, p, f"b {p}", **asked) for p in prompts * 3))
    assert [tokens for tokens, _ in batched] == alone * 3

    cached = [await run(engine, p, "alone 0", **asked) for p in prompts]
    assert [tokens for tokens, _ in cached] == alone
    assert all(count > 0 for _, count in cached)

    chunked = load(slots=3, tokens_per_step=7)
    together = await asyncio.gather(*(run(chunked, p, f"{p}", **asked) for p in prompts))
    assert [tokens for tokens, _ in together] == alone

    # Room for one and a half of these sequences; no cache to take a shortcut by.
    block_bytes = 5 * 2 * 2 * 32 * 32 * 4
    small = load(kv_cache_bytes=12 * block_bytes)
    preempted = await asyncio.gather(
        *(run(small, p, f"{at}", **asked) for at, p in enumerate(prompts))
    )
    assert [tokens for tokens, _ in preempted] == alone
    assert small.stats().kv_blocks_total == 12
    assert small.stats().preemptions > 0
    assert small.stats().kv_blocks_used == 0


async def test_cached_tokens_are_exact(load, prompt):
    """A repeated prompt counts its whole blocks, save the one with its last token."""
    engine = load()
    ids = prompt("Hello", "You are a helpful assistant. " * 10)
    assert (await run(engine, ids))[1] == 0
    assert (await run(engine, ids))[1] == (len(ids) - 1) // 32 * 32 > 0
    changed = [*ids[:40], 7, *ids[41:]]
    assert (await run(engine, changed))[1] == 32
    assert engine.stats().cached_tokens == (len(ids) - 1) // 32 * 32 + 32


async def test_cache_is_salted(load, prompt):
    """The same prompt under another salt finds nothing."""
    engine = load()
    ids = prompt("Hello", "You are a helpful assistant. " * 10)
    await run(engine, ids, "one account")
    assert (await run(engine, ids, "another"))[1] == 0
    assert (await run(engine, ids, "one account"))[1] > 0


async def test_own_completion_is_cached(load, prompt):
    """The next turn of a conversation finds the answer of the last one, too."""
    engine = load()
    ids = prompt("Tell me a story about Alice and a boat.")
    tokens, _ = await run(engine, ids, max_tokens=64, stop_token_ids=())
    following = [*ids, *tokens, 5, 6, 7]
    _, cached = await run(engine, following)
    assert cached == (len(ids) + 63) // 32 * 32 > len(ids)


async def test_fast_precision_runs(load, fast, prompt, tokenizer):
    """With --precision fast the model still speaks its language."""
    tokens, _ = await run(load(fast), prompt("Hello"))
    assert b"".join(map(tokenizer.token_bytes, tokens)).decode().startswith("Hello")


async def test_fast_answers_do_not_depend_on_company(load, fast, prompt):
    """With --precision fast, too, an answer is the same alone and batched."""
    engine = load(fast)
    # So hot that the slightest difference shows.
    asked = {"temperature": 2.0, "seed": 3, "max_tokens": 60, "stop_token_ids": ()}
    prompts = [prompt(text) for text in QUESTIONS]
    alone = [(await run(engine, p, f"alone {at}", **asked))[0] for at, p in enumerate(prompts)]
    batched = await asyncio.gather(*(run(engine, p, f"b {p}", **asked) for p in prompts * 3))
    assert [tokens for tokens, _ in batched] == alone * 3


async def test_small_cache_bounds_the_context(load, prompt):
    """What cannot fit into the KV cache is not promised."""
    engine = load(kv_cache_bytes=1)
    assert (engine.stats().kv_blocks_total, engine.context_length) == (1, 32)


def test_graph_that_is_no_language_model(tiny: PreparedModel, tmp_path):
    """A graph that cannot be loaded is refused in one sentence that names the model."""
    (tmp_path / "openvino_model.xml").write_text("<net></net>")
    (tmp_path / "openvino_model.bin").touch()
    broken = msgspec.structs.replace(tiny, ir=tmp_path / "openvino_model.xml")
    with pytest.raises(ModelError, match=r"^model 'tiny' cannot be loaded: .+$"):
        load_cpu_engine(broken)


def test_a_graph_that_does_not_compile_leaves_nothing_behind(tiny: PreparedModel, monkeypatch):
    """The process for grammars, which is started beside the compilation, ends with it."""
    processes = []
    start = Trial._start

    def started(trial):
        start(trial)
        processes.append(trial._process)

    def fail(*_, **__):
        raise RuntimeError("no kernel fits")

    monkeypatch.setattr(Trial, "_start", started)
    monkeypatch.setattr(loading, "compile_graph", fail)
    with pytest.raises(ModelError, match=r"^model 'tiny' cannot be loaded: no kernel fits$"):
        load_cpu_engine(tiny)
    assert [process.poll() is None for process in processes] == [False]


def test_paged_attention_can_be_built(tiny: PreparedModel):
    """OpenVINO's private pass gives the inputs, outputs and cache that the engine relies on."""
    network = load_network(tiny.ir)
    assert (network.block_size, network.vocabulary) == (32, 1024)
    # 5 layers of keys and values for 2 heads of 32 in float32.
    assert network.block_bytes == 5 * 2 * 2 * 32 * 32 * 4
    network.close()


async def test_a_fault_in_sampling_is_its_requests_own(load, prompt, monkeypatch):
    """Whatever goes wrong while one row is sampled, the others and the engine go on."""
    choose = RowSampler.choose

    def broken(self, logits):
        if self.sampling.seed == 13:
            raise IndexError("a bug")
        return choose(self, logits)

    monkeypatch.setattr(RowSampler, "choose", broken)
    engine = load()
    ids = prompt("Count from 17 to 40.")
    results = await asyncio.gather(
        *(run(engine, ids, temperature=1, seed=seed) for seed in (12, 13, 14)),
        return_exceptions=True,
    )
    assert isinstance(results[1], EngineError)
    assert not isinstance(results[1], EngineDeadError)
    assert not isinstance(results[0], BaseException)
    assert not isinstance(results[2], BaseException)
    assert engine.stats().running == 0
    engine.health()
