"""A head, an edge and two GPU servers, each on a host of its own: joining, upgrading, losing the head.

The head has two schedulers, of which the joining machines are told.
Hosts are network namespaces, so this needs root. With FASTRUN_TEST_OUTAGE_S=60 as before a release.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hosts import Host, Network, network

from fastrun.local.certificates import EVERYONE, provide

OUTAGE_S = float(os.environ.get("FASTRUN_TEST_OUTAGE_S", "8"))
PATIENCE_S = 60
TOKENS = 40
TOKENS_PER_S = 40
SLOTS = 8
CALLERS = 6
SCHEDULER_PORTS = (7002, 7012)

# In a process of its own: where gRPC was used before, a fork in a thread on another host leaves its
# threads there, and no later test reaches its own servers.
POSTGRES = """
import signal, sys
from pathlib import Path
from fastrun.local.postgres import Postgres

server = Postgres(Path(sys.argv[1]), durable=False)
server.start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("dsn", server.dsn, flush=True)
signal.sigwait([signal.SIGTERM])
server.stop()
"""


@dataclass
class Load:
    """Callers on the edge's host, each with one stream after the other."""

    base_url: str
    key: str
    whole: int = 0
    workers: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE_S)) as session:
            await asyncio.gather(*(self._caller(session) for _ in range(CALLERS)))

    async def _caller(self, session: aiohttp.ClientSession) -> None:
        while not self.stopping.is_set():
            problem = await stream(session, self.base_url, self.key, TOKENS)
            if problem is None:
                self.whole += 1
            else:
                self.failures.append(problem)


async def stream(
    session: aiohttp.ClientSession, base_url: str, key: str, tokens: int
) -> str | None:
    """Read one streamed answer to its end; None: it was whole, else what was wrong."""
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "tell"}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"authorization": f"Bearer {key}"}
    try:
        async with session.post(
            f"{base_url}/chat/completions", json=body, headers=headers
        ) as response:
            text = await response.text()
            if response.status != 200:
                return f"{response.status} {text[:200]}"
    except (aiohttp.ClientError, TimeoutError) as error:
        return repr(error)
    items = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    if not items or items[-1] != "[DONE]":
        return f"ended with {text[-200:]}"
    said = sum(
        len(choice["delta"].get("content") or "")
        for item in items[:-1]
        for choice in json.loads(item)["choices"]
    )
    usage = json.loads(items[-2])["usage"]["completion_tokens"]
    return None if said == usage == tokens else f"{said} characters, {usage} tokens"


class Fleet:
    """The whole of it."""

    def __init__(self, net: Network, root: Path) -> None:
        self.net = net
        self.head, self.edge = net.add("head"), net.add("edge")
        self.gpus = [net.add("gpu1"), net.add("gpu2")]
        self._certs = root / "certs"
        self._postgres_folder = root / "postgres"
        self._postgres: subprocess.Popen[bytes] | None = None
        self.key = ""

    @property
    def base_url(self) -> str:
        return "http://127.0.0.1:8000/v1"

    def start(self) -> None:
        provide(self._certs, EVERYONE, datetime.now(UTC))
        self._postgres = self.head.spawn(
            "postgres", sys.executable, "-c", POSTGRES, str(self._postgres_folder)
        )
        self.until(lambda: "dsn " in self.head.log("postgres"))
        database = {"DATABASE_URL": self.head.log("postgres").partition("dsn ")[2].split()[0]}
        migrated = self.head.run("migrate", **database)
        assert migrated.returncode == 0, migrated.stderr
        head = self.head.address
        self._service(
            self.head,
            "auth",
            "auth_service",
            admin=9101,
            **database,
            LISTEN="0.0.0.0:7001",
            PEPPER="ab" * 32,
            ENROL_LISTEN="0.0.0.0:7004",
            ENROL_SCHEDULER_ADDRESSES=",".join(f":{port}" for port in SCHEDULER_PORTS),
            ENROL_CA_KEY=str(self._certs / "ca" / "key.pem"),
        )
        for number, port in enumerate(SCHEDULER_PORTS):
            self._service(
                self.head,
                "scheduler",
                "scheduler",
                admin=9110 + number,
                **database,
                LISTEN=f"0.0.0.0:{port}",
            )
        self._service(
            self.edge,
            "edge",
            "edge",
            admin=9100,
            AUTH_ADDRESS=f"{head}:7001",
            SCHEDULER_ADDRESSES=",".join(f"{head}:{port}" for port in SCHEDULER_PORTS),
            SPOOL=str(self.edge.folder / "spool"),
        )
        self.operator(
            *("certs", str(self._certs), "--auth", "127.0.0.1:7001"),
            *("--scheduler", ",".join(f"127.0.0.1:{port}" for port in SCHEDULER_PORTS)),
        )
        for command in ("create", "approve"):
            self.operator("account", command, "demo")
        self.key = self.operator("key", "issue", "demo").strip()
        context = str(self._certs / "operator" / "context.toml")
        self.head.spawn(
            *("fleet", sys.executable, "-m", "fastrun.cli", "fleet", "--watch", "--json"),
            FASTRUN_CONTEXT=context,
        )

    def stop(self) -> None:
        if self._postgres is not None:
            self._postgres.terminate()
            self._postgres.wait(PATIENCE_S)
        self.net.close()

    def operator(self, *arguments: str) -> str:
        """Run an operator's command on the head, once the head serves."""
        deadline = time.monotonic() + PATIENCE_S
        context = str(self._certs / "operator" / "context.toml")
        while True:
            done = self.head.run(*arguments, FASTRUN_CONTEXT=context)
            if done.returncode == 0:
                return done.stdout
            assert "nothing answers" in done.stderr, done.stderr
            assert time.monotonic() < deadline, done.stderr
            time.sleep(0.1)

    def workers(self) -> dict[str, dict[str, Any]]:
        """What the scheduler said last of each worker, by name."""
        *_, last, _ = ["", *self.head.log("fleet").split("\n")]
        return {each["worker_id"]: each for each in json.loads(last)["workers"]} if last else {}

    def drifts(self) -> set[int]:
        """All figures of drift that the scheduler has told."""
        return {json.loads(line)["drift"] for line in self.head.log("fleet").splitlines()}

    def join(self, host: Host) -> None:
        """Make a host a worker, as its people do: one command, with a token from the head."""
        token = self.operator("worker", "token").strip()
        self._run_worker(
            host, "join", f"{self.head.address}:7004", "--name", host.name, "--token", token
        )

    def upgrade(self, host: Host, *, by_command: bool) -> None:
        """Drain a worker, as an operator or its supervisor does, and start it from what it has."""
        before = self.workers()[host.name]["instance_id"]
        process = host.processes[-1]
        if by_command:
            self.operator("fleet", "drain", host.name)
        else:
            process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        self._run_worker(host, "run")
        self.until(lambda: self.workers()[host.name]["instance_id"] != before)

    def _run_worker(self, host: Host, *arguments: str) -> None:
        settings = {
            "ENGINE": "scripted",
            "SLOTS": str(SLOTS),
            "SCRIPTED_TOKENS_PER_S": str(TOKENS_PER_S),
        }
        host.spawn(
            "worker",
            *(sys.executable, "-m", "fastrun.cli", "worker", *arguments),
            *("--data", str(host.folder / "worker")),
            **{f"FASTRUN_WORKER_{name}": value for name, value in settings.items()},
        )
        self.until(lambda: self.workers().get(host.name, {}).get("state") == "serving")

    def until(self, condition) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                logs = [
                    f"{host.name}/{path.name}:\n{path.read_text()[-3000:]}"
                    for host in self.net.hosts.values()
                    for path in host.folder.glob("*.log")
                ]
                raise AssertionError("\n".join(logs))
            time.sleep(0.1)

    def _service(self, host: Host, role: str, module: str, *, admin: int, **settings: str) -> None:
        files = {
            f"TLS_{name.upper()}": str(self._certs / role / f"{name}.pem")
            for name in ("cert", "key", "ca")
        }
        url = {name: settings.pop(name) for name in ("DATABASE_URL",) if name in settings}
        ours = {"ADMIN_LISTEN": f"127.0.0.1:{admin}", **files, **settings}
        environ = {f"FASTRUN_{role.upper()}_{name}": value for name, value in ours.items()}
        host.spawn(role, sys.executable, "-m", module, **url, **environ)


@pytest.fixture
def fleet():
    """A head and an edge that serve, and two hosts that are nothing yet."""
    root = Path(tempfile.mkdtemp(prefix="hosts-"))  # tmp_path is closed to user nobody
    root.chmod(0o711)
    try:
        with network(root) as net:
            fleet = Fleet(net, root)
            try:
                fleet.start()
                yield fleet
            finally:
                fleet.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def test_join_and_upgrade_one_by_one_under_load(fleet):
    """Workers come, serve, and are stopped and started one by one, and no request fails."""
    first, second = fleet.gpus
    fleet.join(first)
    load = Load(fleet.base_url, fleet.key)
    running = fleet.edge.submit(load.run)
    try:
        fleet.until(lambda: load.whole >= CALLERS or load.failures)
        fleet.join(second)
        fleet.until(lambda: fleet.workers()["gpu2"]["slots_in_use"] > 0)
        addresses = {each["address"] for each in fleet.workers().values()}
        assert addresses == {f"{host.address}:7003" for host in fleet.gpus}
        for host in fleet.gpus:
            fleet.upgrade(host, by_command=host is second)
            served = load.whole
            fleet.until(lambda: load.whole > served + CALLERS)  # noqa: B023 - at once
            fleet.until(lambda: fleet.workers()[host.name]["slots_in_use"] > 0)  # noqa: B023
    finally:
        load.stopping.set()
        running.result(PATIENCE_S)

    print(f"\n{load.whole} whole answers, {len(load.failures)} failures")
    assert load.failures == []
    fleet.until(lambda: not any(each["slots_in_use"] for each in fleet.workers().values()))
    assert fleet.drifts() == {0}


def test_the_head_is_lost_and_comes_back(fleet):
    """Streams that run are told to their end without scheduler and auth service; then work goes on."""
    for host in fleet.gpus:
        fleet.join(host)
    load = Load(fleet.base_url, fleet.key)
    fleet.edge.submit(lambda: asyncio.run(_once(load))).result(PATIENCE_S)
    assert load.failures == [], load.failures
    long = round((OUTAGE_S - 2) * TOKENS_PER_S)
    streams = [fleet.edge.submit(lambda: asyncio.run(_one(load, long))) for _ in range(SLOTS)]
    fleet.until(
        lambda: sum(each["slots_in_use"] for each in fleet.workers().values()) == len(streams)
    )

    fleet.net.unplug("head")
    lost_at = time.monotonic()
    problems = [each.result(OUTAGE_S + PATIENCE_S) for each in streams]
    ended_s = time.monotonic() - lost_at
    refused = fleet.edge.submit(lambda: asyncio.run(_one(load, TOKENS))).result(PATIENCE_S)
    with suppress(ValueError):
        time.sleep(OUTAGE_S - (time.monotonic() - lost_at))
    fleet.net.plug("head")
    back_at = time.monotonic()
    fleet.until(lambda: fleet.edge.submit(lambda: asyncio.run(_one(load, TOKENS))).result() is None)
    back_s = time.monotonic() - back_at

    print(f"\nstreams ended {ended_s:.1f} s after the loss; served {back_s:.1f} s after the return")
    assert problems == [None] * len(streams)
    assert refused is not None
    assert refused.startswith("503 ")
    fleet.until(lambda: len(fleet.workers()) == len(fleet.gpus))
    fleet.until(
        lambda: all(
            each["state"] == "serving" and not each["slots_in_use"]
            for each in fleet.workers().values()
        )
    )
    assert fleet.drifts() == {0}


async def _once(load: Load) -> None:
    load.failures += [each for each in [await _one(load, 1)] if each]


async def _one(load: Load, tokens: int) -> str | None:
    timeout = aiohttp.ClientTimeout(total=OUTAGE_S + PATIENCE_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        return await stream(session, load.base_url, load.key, tokens)
