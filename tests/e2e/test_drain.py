"""Workers that leave under load: no client notices, whether its answer ends there or moves.

FASTRUN_TEST_RUNS=10 pytest -s tests/e2e/test_drain.py restarts all workers ten times.
"""

import asyncio
import os
import re
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import openai
import orjson
import pytest
from traffic import Callers

RUNS = int(os.environ.get("FASTRUN_TEST_RUNS", "1"))
LIMIT_S = 60
SERVING = "serving"
PARALLEL = 8
TEXTS = [f"[[tokens={60 + 20 * at}]] Tell me story {at}." for at in range(4)]
MAX_TOKENS = 200
# What a machine that is busy makes of any restart.
SLOW = re.compile(r"silent for|no confirmation|did not answer")


@pytest.fixture(scope="module")
def stack(shared_machine):
    """Two workers, each with slots for the whole load."""
    up = shared_machine.up(
        *("--ephemeral", "--json", "--workers", "2", "--engine", "scripted"),
        *("--slots", str(PARALLEL)),
        FASTRUN_WORKER_SCRIPTED_TOKENS_PER_S="40",
    )
    with up.running():
        yield up


def told(answer):
    """What an answer says, and how many tokens it says that it has."""
    if answer.text.startswith("{"):
        body = orjson.loads(answer.text)
        return body["choices"][0]["message"]["content"], body["usage"]["completion_tokens"]
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    chunks = [orjson.loads(line) for line in lines]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    (usage,) = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return "".join(delta.get("content") or "" for delta in deltas), usage["completion_tokens"]


class Load:
    """Callers that ask again as soon as they are answered, streamed and plain in turn."""

    def __init__(self, callers, key):
        self._callers, self._key = callers, key
        self._over = asyncio.Event()
        self.answers = []
        self.running = 0

    async def ask(self, text, *, stream):
        options = {"stream_options": {"include_usage": True}} if stream else {}
        return await self._callers.ask(
            self._key, text, stream=stream, max_tokens=MAX_TOKENS, temperature=0, **options
        )

    async def run(self, number):
        while not self._over.is_set():
            text = TEXTS[(number + len(self.answers)) % len(TEXTS)]
            self.answers.append((text, await self.ask(text, stream=len(self.answers) % 2 == 0)))

    @asynccontextmanager
    async def going(self):
        """Load until the end of the block, when all have their answers."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(PARALLEL):
                tasks.create_task(self.run(number))
            yield
            self._over.set()


@asynccontextmanager
async def load(stack):
    """A load on the stack during a block; after it each answer must be what it always is."""
    async with Callers.of(stack) as callers:
        made = Load(callers, stack.ready["api_key"])
        asked = await asyncio.gather(*(made.ask(text, stream=False) for text in TEXTS))
        whole = dict(zip(TEXTS, map(told, asked), strict=True))
        async with made.going():
            yield made
    failed = [each for _, each in made.answers if each.status != 200 or not each.is_whole]
    assert failed == []
    assert [told(each) for _, each in made.answers] == [whole[text] for text, _ in made.answers]


async def busy(stack, worker_id):
    """Wait until a worker runs several requests."""

    def runs():
        return any(
            each.worker_id == worker_id and each.slots_in_use >= 2 for each in stack.fleet().workers
        )

    async with asyncio.timeout(LIMIT_S):
        while not await asyncio.to_thread(runs):
            await asyncio.sleep(0.05)


async def drain(machine, stack, worker_id, *options):
    """Drain a worker as an operator does; what the command says in the end."""
    arguments = ("fleet", "drain", worker_id, "--data", stack.ready["data"], *options)
    done = await asyncio.to_thread(machine.run, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()[-1]


def instances(stack):
    return {each.worker_id: each.instance_id for each in stack.fleet().workers}


async def test_a_drained_worker_fails_nothing(shared_machine, stack, eventually):
    """What cannot end before the deadline goes on at the other worker, word for word."""
    before = instances(stack)
    worker_id = min(before)
    async with load(stack) as made:
        await busy(stack, worker_id)
        said = await drain(shared_machine, stack, worker_id, "--deadline", "0.2", "--restart")
    print(f"\n{said}; {len(made.answers)} answers")
    match = re.search(r"is back as a new process: (\d+) requests ran, (\d+) moved", said)
    assert match, said
    assert int(match[2]) >= 1
    after = instances(stack)
    assert {name for name in before if before[name] != after[name]} == {worker_id}
    assert eventually(lambda: stack.slots_in_use() == 0)
    assert stack.fleet().drift == 0


async def test_a_rolling_restart_fails_nothing(shared_machine, stack, eventually):
    """All workers are replaced one by one under load."""
    before = instances(stack)
    async with load(stack) as made:
        for _ in range(RUNS):
            for worker_id in sorted(before):
                await busy(stack, worker_id)
                options = ("--deadline", "1", "--restart")
                print(f"\n{await drain(shared_machine, stack, worker_id, *options)}")
    print(f"{len(made.answers)} answers")
    after = instances(stack)
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
    assert eventually(lambda: stack.slots_in_use() == 0)
    assert stack.fleet().drift == 0


def processes_of(stack, service):
    """The process ids of its workers, or of another service."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            environ = (process / "environ").read_bytes()
        except OSError:
            continue
        if service.encode() in command and stack.ready["data"].encode() in environ:
            found.append(int(process.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
async def test_sigterm_of_a_worker_fails_nothing(stack, eventually):
    """It drains as by an operator's word, and what supervises it starts it again."""
    before, processes = instances(stack), processes_of(stack, "gpu_worker")
    assert len(processes) == len(before)
    async with load(stack) as made:
        for number, process in enumerate(processes, start=1):
            os.kill(process, signal.SIGTERM)

            def back(number=number):
                now = {each.instance_id for each in stack.fleet().workers if each.state == SERVING}
                return len(now) == 2 and len(now - set(before.values())) == number

            assert await asyncio.to_thread(eventually, back, LIMIT_S)
    print(f"\n{len(made.answers)} answers")
    assert before.keys() == instances(stack).keys()
    assert stack.fleet().drift == 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("service", ["gpu_worker", "scheduler", "auth_service", "edge"])
def test_what_was_asked_for_is_no_warning(stack, eventually, service):
    """Of a service that is told to end, and of the drains before, all logs have information only."""
    before = processes_of(stack, service)
    os.kill(before[0], signal.SIGTERM)

    def back():
        now = processes_of(stack, service)
        return before[0] not in now and len(now) == len(before) and is_whole(stack)

    assert eventually(back, LIMIT_S)
    lines = [
        orjson.loads(line)
        for log in Path(stack.ready["data"], "logs").glob("*.log")
        for line in log.read_text().splitlines()
        if line.startswith("{")
    ]
    assert lines
    told = [line for line in lines if line["level"] not in ("debug", "info")]
    assert [line for line in told if not SLOW.search(line.get("reason", ""))] == []


def is_whole(stack):
    """Whether the auth service answers, all workers serve, and so a request is served."""
    try:
        with stack.client() as client:
            client.get("/usage", cast_to=object)
            states = {each.state for each in stack.fleet().workers}
            messages = [{"role": "user", "content": "[[tokens=1]]"}]
            client.chat.completions.create(model=stack.ready["model"], messages=messages)
    except (openai.OpenAIError, grpc.RpcError):
        return False
    return states == {SERVING}


def test_a_worker_that_is_not_there(shared_machine, stack):
    """The refusal lists those that are."""
    done = shared_machine.run("fleet", "drain", "nobody", "--data", stack.ready["data"])
    known = ", ".join(sorted(instances(stack)))
    assert done.returncode == 1
    assert done.stderr == f"fastrun: there is no worker 'nobody': use one of {known}\n"
