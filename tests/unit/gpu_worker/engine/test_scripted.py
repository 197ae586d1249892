"""The scripted engine: what its scripts do, and its tokenizer."""

import asyncio
import re
import time

import pytest
from engine_outputs import outputs_of
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engine.grammar import GrammarError, Literal
from gpu_worker.engine.protocol import EngineDeadError, EngineError, Finish, SamplingParams
from gpu_worker.engine.scripted import CLOCK, TURN_END, ByteTokenizer, ScriptedEngine

TOKENIZER = ByteTokenizer()


async def run(engine, prompt, max_tokens=20, **fields):
    sampling = SamplingParams(max_tokens=max_tokens, **fields)
    prompt = TOKENIZER.encode(prompt, special=True)
    came = [output async for output in outputs_of(engine, prompt, sampling, cache_salt="")]
    ids = [token for output in came for token in output.token_ids]
    return b"".join(map(TOKENIZER.token_bytes, ids)).decode(), came[-1].finish


async def test_says_words_without_a_script():
    """A prompt without commands is answered with words until max_tokens."""
    text, finish = await run(ScriptedEngine(), "Hello", max_tokens=40)
    assert (len(text), finish) == (40, Finish.LENGTH)
    assert text.replace(" ", "").isalpha()


async def test_prompt_and_seed_change_the_words():
    """Other prompts and seeds give other words; at temperature 0 the seed does not matter."""
    engine = ScriptedEngine()
    text, _ = await run(engine, "Hello", seed=1)
    assert text != (await run(engine, "Hello", seed=2))[0]
    assert text != (await run(engine, "Hallo", seed=1))[0]
    cold = [await run(engine, "Hello", temperature=0, seed=seed) for seed in (1, 2)]
    assert cold[0] == cold[1]


async def test_tokens_command():
    """[[tokens=5]] ends the turn after five tokens."""
    text, finish = await run(ScriptedEngine(), "Go [[tokens=5]]")
    assert (len(text), finish) == (5, Finish.STOP)


async def test_text_command():
    """[[text=...]] is said to the letter."""
    assert await run(ScriptedEngine(), "Say [[text=Hé 👋\n]]") == ("Hé 👋\n", Finish.STOP)


async def test_max_tokens_ends_a_script_early():
    """max_tokens counts for scripts, too."""
    assert await run(ScriptedEngine(), "[[text=Hello]]", max_tokens=2) == ("He", Finish.LENGTH)


async def test_fail_command():
    """[[fail=3]] fails this request at token 3 and no other."""
    engine = ScriptedEngine(slots=1)
    with pytest.raises(EngineError, match="failed this request"):
        await run(engine, "[[fail=3]]")
    assert engine.stats().running == 0
    assert (await run(engine, "[[text=ok]]"))[0] == "ok"


async def test_die_command():
    """[[die=2]] fails the engine with all that runs and waits."""
    engine = ScriptedEngine(slots=2)
    prompts = ["[[die=2]]", "Hello", "I wait"]
    results = await asyncio.gather(
        *(run(engine, prompt) for prompt in prompts), return_exceptions=True
    )
    assert all(isinstance(result, EngineDeadError) for result in results)
    with pytest.raises(EngineDeadError):
        engine.health()


async def test_prefill_takes_time_by_length():
    """The first token comes after the prompt's prefill."""
    engine = ScriptedEngine(seconds_per_prompt_token=0.001)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await run(engine, "x" * 50, max_tokens=1)
    assert loop.time() - began >= 0.05


async def test_a_long_prompt_holds_up_no_short_one():
    """A short prompt is answered while a longer one that came before is still read."""
    engine = ScriptedEngine(seconds_per_prompt_token=0.01)
    long = asyncio.create_task(run(engine, "x" * 100_000))
    await asyncio.sleep(0)  # the long one has come

    assert await run(engine, "[[text=Hi]]") == ("Hi", Finish.STOP)
    assert not long.done()
    await engine.close()
    with pytest.raises(EngineDeadError):
        await long


async def test_tokens_come_at_the_pace():
    """The first token comes at once, and the others not faster than the set pace."""
    engine = ScriptedEngine(seconds_per_token=0.005)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await run(engine, "Hello", max_tokens=11)
    assert loop.time() - began >= 0.05


async def test_a_first_token_waits_for_no_step():
    """Who comes between two steps gets a first token before the next one is due."""
    engine = ScriptedEngine(seconds_per_token=3600)
    waiting = asyncio.create_task(run(engine, "Hello"))
    await asyncio.sleep(0)  # it has come

    assert len((await run(engine, "Hallo", max_tokens=1))[0]) == 1
    assert not waiting.done()
    await engine.close()
    with pytest.raises(EngineDeadError):
        await waiting


async def test_clock_command():
    """[[clock=us]] says in each token when it was made."""
    before_us = time.monotonic_ns() // 1000
    text, _ = await run(ScriptedEngine(), "[[clock=us]]", max_tokens=3)
    after_us = time.monotonic_ns() // 1000
    stamps = re.findall(r"@T(\d{10}) ", text)
    assert text == "".join(f"@T{stamp} " for stamp in stamps)
    assert len(stamps) == 3
    assert all((int(stamp) - before_us) % CLOCK <= after_us - before_us for stamp in stamps)


@given(st.text())
def test_tokenizer_round_trip(text):
    """The bytes of a text's tokens are its UTF-8, special tokens included."""
    ids = TOKENIZER.encode(text + "<|im_end|>", special=False)
    assert b"".join(map(TOKENIZER.token_bytes, ids)).decode() == text + "<|im_end|>"
    assert TOKENIZER.encode("<|im_end|>", special=True) == [TURN_END]
    assert max(ids) < TOKENIZER.vocab_size


async def test_refuses_grammars():
    """A script cannot be held to a grammar, which is said before anything is generated."""
    engine = ScriptedEngine()
    with pytest.raises(GrammarError, match="scripted engine"):
        await engine.compile(Literal("a"))
    sampling = SamplingParams(max_tokens=5)
    with pytest.raises(GrammarError, match="scripted engine"):
        await anext(outputs_of(engine, [1], sampling, cache_salt="", grammar=Literal("a")))
    assert engine.stats().waiting == engine.stats().running == 0
