"""`fastrun worker smoke`: over real workers, and over some that do what it looks for."""

import asyncio
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from standin_engine import STANDIN
from standin_engine import TINY as TINY_FOLDER

from fastrun.cli import smoke_checks
from fastrun.cli.own_worker import environment
from fastrun.cli.smoke_checks import CheckError, SkippedError, Subject
from fastrun.cli.worker_calls import Calls
from fastrun.service import rpc
from gpu_worker import engines
from gpu_worker.config import Config
from gpu_worker.engine.scripted import ScriptedEngine

TINY = Path(__file__).parents[2] / "models" / "tiny" / "tiny.gguf"
NAMES = [
    *("start", "throughput", "abort", "guided output", "long prompt", "too long a prompt"),
    "restart",
]


async def smoke(*arguments, **environ):
    """Run the command; return its status, what it printed and what it complained of."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fastrun.cli", "worker", "smoke", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environ},
    )
    printed, complained = await process.communicate()
    return process.returncode, printed.decode(), complained.decode()


@pytest.mark.parametrize(
    ("model", "environ"),
    [
        (f"tiny={TINY}", {}),
        (
            f"tiny={TINY_FOLDER}",
            {"FASTRUN_WORKER_ENGINE": "tensorrt-llm", "PYTHONPATH": str(STANDIN)},
        ),
    ],
    ids=["cpu", "tensorrt-llm"],
)
async def test_a_worker_of_its_own_passes(model, environ, cache, tmp_path):
    """Every check is made and measured, and the worker is started twice; its log is not kept."""
    status, printed, complained = await smoke(
        *("--json", "--model", model, "--prompt-tokens", "500"),
        FASTRUN_WORKER_SLOTS="3",
        FASTRUN_WORKER_CACHE=str(cache),
        # What a worker of a fleet would be told on the same machine.
        FASTRUN_WORKER_SCHEDULER_ADDRESSES="127.0.0.1:1",
        TMPDIR=str(tmp_path),
        **environ,
    )
    assert status == 0, complained
    lines = json.loads(printed)
    assert [line["check"] for line in lines] == NAMES
    assert {line["verdict"] for line in lines} == {"ok"}
    said = {line["check"]: line["measured"] for line in lines}
    assert "3 streams" in said["throughput"]
    # The CPU's model is so small that it may be done before one more is asked for: see below.
    assert "3 streams at once" in said["abort"]
    if environ:
        assert "one more was refused" in said["abort"]
    assert "fit the schema" in said["guided output"]
    assert "served again" in said["restart"]
    assert list(tmp_path.glob("fastrun-smoke-*")) == []


async def test_a_worker_that_cannot_start_is_named(tmp_path):
    """The command fails with the worker's own words, and keeps its log."""
    status, printed, complained = await smoke(
        "--model", str(tmp_path / "none.gguf"), TMPDIR=str(tmp_path)
    )
    assert (status, printed) == (1, "")
    assert "the worker could not start" in complained
    assert len(list(tmp_path.glob("fastrun-smoke-*/worker.log"))) == 1


async def test_a_running_worker_passes_but_is_not_restarted(run_stack):
    """One without a fleet takes requests from whoever reaches it."""
    async with run_stack(standalone=True, scripted_tokens_per_s=200.0) as stack:
        address = f"127.0.0.1:{stack.ports['grpc']}"
        status, printed, complained = await smoke("--worker", address)
    assert status == 0, complained
    verdicts = {line[8:27].strip(): line[:8].strip() for line in printed.splitlines()}
    assert list(verdicts) == NAMES
    assert verdicts["abort"] == "ok"
    assert verdicts["restart"] == verdicts["guided output"] == "skipped"


async def test_a_worker_of_a_fleet_is_left_alone(stack):
    """It takes leases only; the command says what to do."""
    status, printed, complained = await smoke("--worker", f"127.0.0.1:{stack.ports['grpc']}")
    assert status == 1
    assert "failed" not in printed
    assert "FASTRUN_WORKER_STANDALONE=true" in complained


async def test_a_worker_that_is_not_there_is_named():
    """There is nothing to check."""
    status, _, complained = await smoke("--worker", "127.0.0.1:1")
    assert status == 1
    assert "the worker does not answer" in complained


class Stubborn(ScriptedEngine):
    """Holds on to what was aborted, and says what it likes."""

    held = None

    async def compile(self, grammar):
        """Take every grammar."""

    async def generate(self, token_ids, sampling, *, grammar=None, **options):
        """Follow none."""
        try:
            await super().generate(token_ids, sampling, **options)
        finally:
            if self.held is not None:
                await self.held.wait()


async def stubborn(config):
    """Load it."""
    engine, model = await engines.load(config)
    engine.__class__ = Stubborn
    model.card.features.append("structured_output")
    return engine, model


@pytest.fixture
async def subject(run_stack):
    """A worker with that engine."""
    config = Config(engine="scripted", slots=2, scripted_tokens_per_s=200.0, scripted_context=512)
    async with (
        run_stack(load=partial(stubborn, config), standalone=True, slots=2) as stack,
        rpc.channel(f"127.0.0.1:{stack.ports['grpc']}") as channel,
    ):
        calls = Calls(channel)
        yield Subject(calls=calls, info=await calls.info(), salt="test"), stack.worker._engine


async def test_slots_that_are_not_freed_fail(subject, monkeypatch):
    """What hung up has to leave its slot."""
    monkeypatch.setattr(smoke_checks, "FREED_LIMIT_S", 0.2)
    subject, engine = subject
    engine.held = asyncio.Event()
    try:
        with pytest.raises(CheckError, match="2 slots are still held"):
            await smoke_checks.abort(subject)
    finally:
        engine.held.set()


async def test_one_more_than_there_are_slots_is_refused(subject, monkeypatch):
    """While all slots are held, the check asks for one more and tells that it was refused."""
    subject, engine = subject
    engine.held = asyncio.Event()
    freed = smoke_checks._freed

    async def let_go(*arguments):
        engine.held.set()
        return await freed(*arguments)

    monkeypatch.setattr(smoke_checks, "_freed", let_go)
    assert "2 streams at once, one more was refused" in await smoke_checks.abort(subject)


async def test_answers_that_fit_no_schema_fail(subject):
    """It is not enough that something comes."""
    subject, _ = subject
    with pytest.raises(CheckError, match="no end within 256 tokens"):
        await smoke_checks.guided(subject)
    for text in ("{}", "x", "[]", '{"city": "Rome", "days": true}', '{"city": "Bonn", "days": 1}'):
        assert not smoke_checks._fits(text)
    assert smoke_checks._fits('{"city": "Rome", "days": 3}')


async def test_what_a_model_cannot_do_is_skipped(run_stack):
    """It is no failure of the worker."""
    async with (
        run_stack(standalone=True) as stack,
        rpc.channel(f"127.0.0.1:{stack.ports['grpc']}") as channel,
    ):
        calls = Calls(channel)
        with pytest.raises(SkippedError):
            await smoke_checks.guided(Subject(calls=calls, info=await calls.info(), salt="test"))


def test_its_own_worker_is_of_no_fleet():
    """Engine and model are as set; certificates, addresses and name are not."""
    made = environment(
        {
            "FASTRUN_WORKER_ENGINE": "tensorrt-llm",
            "FASTRUN_WORKER_TLS_CERT": "/certs/cert.pem",
            "FASTRUN_WORKER_TLS_KEY_FILE": "/run/key",
            "FASTRUN_WORKER_LISTEN": "0.0.0.0:7003",
            "PATH": "/bin",
        }
    )
    assert made["FASTRUN_WORKER_ENGINE"] == "tensorrt-llm"
    assert made["PATH"] == "/bin"
    assert made["FASTRUN_WORKER_TLS_CERT"] == ""
    assert "FASTRUN_WORKER_TLS_KEY_FILE" not in made
    assert made["FASTRUN_WORKER_LISTEN"] == "127.0.0.1:0"
    assert made["FASTRUN_WORKER_STANDALONE"] == "true"
