"""Grammars that no process survives are refused, and harm neither the worker nor others."""

import asyncio
import json
import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_worker.engine.cpu import grammar_compiler
from gpu_worker.engine.cpu.grammar_compiler import GrammarCompiler
from gpu_worker.engine.grammar import GrammarError, Json, Literal
from gpu_worker.engine.guidance import lanes
from gpu_worker.engine.guidance.lark import lark
from gpu_worker.engine.guidance.trial import Trial
from gpu_worker.engine.protocol import EngineError

TOKENIZER = Path(__file__).parents[2] / "models/tiny/tokenizer.json"
VOCABULARY, EOS_IDS = 1056, (0, 2)
LIMIT_S = 60


def endless(number=0):
    """A schema that takes the library for ever; each number makes another one."""
    patterns = [{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(1, 24)]
    return Json(json.dumps({"allOf": patterns, "title": str(number)}))


@pytest.fixture
async def compiler():
    """For the tiny model's vocabulary."""
    made = GrammarCompiler(TOKENIZER, vocabulary=VOCABULARY, eos_ids=EOS_IDS)
    async with asyncio.timeout(LIMIT_S):
        yield made
    made.close()


@pytest.fixture
def trial():
    """A process of its own."""
    made = Trial(TOKENIZER, size=VOCABULARY, eos_ids=EOS_IDS)
    yield made
    made.close()


async def test_endless_compilation_is_refused(compiler):
    """It fails its own request, takes no memory of the worker, and the next grammar compiles."""
    await compiler.check(Literal("before"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(GrammarError, match="too much time or memory"):
        await compiler.check(endless())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000
    assert len((await compiler.begin(Literal("after"))).allowed())


async def test_others_are_compiled_meanwhile(compiler):
    """However many are endless, none of the others is refused."""
    attacks = [asyncio.create_task(compiler.check(endless(number))) for number in range(4)]
    for number in range(10):
        await compiler.check(Literal(str(number)))
    outcomes = await asyncio.gather(*attacks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {GrammarError}


async def test_slow_grammars_have_time(compiler, monkeypatch):
    """What takes longer than most is compiled all the same."""
    monkeypatch.setattr(grammar_compiler, "QUICK_S", 0.001)
    await compiler.check(Json(json.dumps({"properties": {f"p{at}": {} for at in range(1500)}})))


async def test_large_grammars_are_refused(compiler, monkeypatch):
    """What would hold too much memory is not compiled in the worker."""
    monkeypatch.setattr(grammar_compiler, "MAX_BYTES", 1000)
    with pytest.raises(GrammarError, match="too much time or memory"):
        await compiler.check(Json(json.dumps({"properties": {f"p{at}": {} for at in range(500)}})))


async def test_what_is_known_needs_no_trial(compiler):
    """The last grammars are compiled, or refused, without asking again."""
    await compiler.check(Literal("good"))
    refused = [endless(), Json('{"not": {}}')]
    for grammar in refused:
        with pytest.raises(GrammarError):
            await compiler.check(grammar)
    compiler._trial.close()
    for _ in range(2):
        await compiler.begin(Literal("good"))
    for grammar in refused:
        with pytest.raises(GrammarError):
            await compiler.begin(grammar)
    with pytest.raises(EngineError, match="try again"):
        await compiler.check(Literal("new"))


async def test_waiting_for_others_is_no_fault_of_the_grammar(compiler, monkeypatch):
    """A request that had to wait too long can be repeated."""
    monkeypatch.setattr(lanes, "WAIT_S", 0)
    with pytest.raises(EngineError, match="busy"):
        await compiler.check(Literal("a"))
    monkeypatch.undo()
    await compiler.check(Literal("a"))


def test_process_that_died_is_replaced(trial):
    """Whatever killed it, the next grammar is tried out."""
    text = 'start: "a"'
    for _ in range(2):
        assert trial.run(text, cpu_limit_s=1) is not None
        os.kill(trial._process.pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_grammar_that_takes_all_memory(trial):
    """It ends for that, long before its time is over, and alone."""
    assert trial.run(lark(endless(), {}), cpu_limit_s=1000) is None
    assert trial.run('start: "a"', cpu_limit_s=1) is not None
    assert trial._process.poll() is None


def test_close_leaves_no_process(trial):
    """It ends at once, even while it starts."""
    trial.close()
    assert trial._process.returncode == -signal.SIGKILL
    trial.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd to see a stranger's end")
def test_process_ends_with_the_worker():
    """Also when the worker is killed."""
    code = f"""
import threading
from pathlib import Path
from gpu_worker.engine.guidance.trial import Trial
trial = Trial(Path({str(TOKENIZER)!r}), size={VOCABULARY}, eos_ids={EOS_IDS})
trial.run('start: "a"', cpu_limit_s=1)
print(trial._process.pid, flush=True)
threading.Event().wait()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as worker:
        server = os.pidfd_open(int(worker.stdout.readline()))
        try:
            worker.kill()
            assert select.select([server], [], [], LIMIT_S)[0]
        finally:
            os.close(server)
