"""Whole stacks, started as people start them, and what is left of them in the end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from fastrun.service.identity import Role
from fastrun.v1 import scheduler_pb2, scheduler_pb2_grpc

if TYPE_CHECKING:
    import openai

FASTRUN = (sys.executable, "-m", "fastrun.cli")
START_S = 120
END_S = 60
TINY = ("--model", f"tiny={Path(__file__).parent / 'models' / 'tiny' / 'tiny.gguf'}")
SCRIPTED = ("--engine", "scripted", "--slots", "2")


def _eventually(condition: Callable[[], bool], timeout_s: float = 20) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="session")
def eventually() -> Callable[..., bool]:
    """Tell whether a condition comes true in time."""
    return _eventually


@pytest.fixture(scope="session")
def scripted() -> tuple[str, ...]:
    """Options for a stack that starts fast, for tests that are not about the model."""
    return SCRIPTED


@dataclass
class Up:
    """One `fastrun up`."""

    process: subprocess.Popen[str]
    ready: dict[str, Any] = field(default_factory=dict)

    @property
    def base_url(self) -> str:
        return self.ready["base_url"]

    def wait_ready(self) -> "Up":
        line = self.process.stdout.readline()
        assert line, f"not ready: {self.process.stderr.read()}"
        self.ready = json.loads(line)
        return self

    @contextmanager
    def running(self) -> Iterator["Up"]:
        """Ready until the end of a block; then it has to end with status 0 when it is told to."""
        try:
            yield self.wait_ready()
        finally:
            status = self.stop()
        assert status == 0

    @property
    def environ(self) -> dict[str, str]:
        """What `--exec` gives to its command."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.ready["api_key"],
            "OPENAI_MODEL": self.ready["model"],
        }

    def client(self) -> "openai.OpenAI":
        import openai  # noqa: PLC0415 - takes a second, and most tests start no stack

        return openai.OpenAI(
            base_url=self.base_url, api_key=self.ready["api_key"], max_retries=0, timeout=60
        )

    def channel(self, address: str, role: Role) -> grpc.Channel:
        """Open a channel to one of its services, as its operator."""
        folder = Path(self.ready["data"]) / "certs" / "operator"
        cert, key, ca = ((folder / name).read_bytes() for name in ("cert.pem", "key.pem", "ca.pem"))
        return grpc.secure_channel(
            address,
            grpc.ssl_channel_credentials(ca, key, cert),
            options=[
                ("grpc.enable_http_proxy", 0),
                ("grpc.ssl_target_name_override", role.dns_name),
            ],
        )

    def fleet(self) -> scheduler_pb2.WatchFleetResponse:
        """As the scheduler sees it that leads."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            views = [self.view(address) for address in self.ready["scheduler_addresses"]]
            if led := [view for view in views if view is not None and view.leads]:
                return max(led, key=lambda view: view.term)
            time.sleep(0.05)
        raise AssertionError("no scheduler leads")

    def view(self, address: str) -> scheduler_pb2.WatchFleetResponse | None:
        """As one scheduler sees it; None: it does not answer."""
        with self.channel(address, Role.SCHEDULER) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            request = scheduler_pb2.WatchFleetRequest(interval_ms=0)
            try:
                return next(iter(stub.WatchFleet(request, timeout=2)))
            except grpc.RpcError:
                return None

    def slots_in_use(self) -> int:
        return sum(worker.slots_in_use for worker in self.fleet().workers)

    def waiting(self) -> int:
        return sum(queue.waiting for queue in self.fleet().queues)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal it; return its exit status."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> int:
        try:
            return self.process.wait(END_S)
        finally:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe:
                    pipe.close()


@dataclass
class Machine:
    """A home, a folder for temporary files and an environment of a test's own."""

    root: Path
    cache: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in (self.tmp, self.data):
            path.mkdir()
            path.chmod(0o711)
        self.environ = {
            **{name: value for name, value in os.environ.items() if not _leads_elsewhere(name)},
            "TMPDIR": str(self.tmp),
            "XDG_DATA_HOME": str(self.data),
            "XDG_CACHE_HOME": str(self.cache),
            "XDG_CONFIG_HOME": str(self.root / "config"),
        }

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def data(self) -> Path:
        return self.root / "data"

    def up(self, *arguments: str, **environ: str) -> Up:
        return Up(
            subprocess.Popen(
                (*FASTRUN, "up", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**self.environ, **environ},
            )
        )

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command of fastrun to its end."""
        return subprocess.run(
            (*FASTRUN, *arguments),
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**self.environ, **environ},
            timeout=START_S,
        )

    def processes(self) -> dict[int, str]:
        """The command lines, by process id, of all that know of this machine's folders."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                known = command + (process / "environ").read_bytes()
            except OSError:
                continue
            if str(self.root).encode() in known:
                found[int(process.name)] = command.replace(b"\0", b" ").decode()
        return found

    def nothing_left(self) -> bool:
        """Whether all processes are gone, and all temporary files with them."""
        return _eventually(lambda: not self.processes() and not any(self.tmp.iterdir()))


def _leads_elsewhere(name: str) -> bool:
    return "PROXY" in name.upper() or name in ("FASTRUN_CONTEXT", "FASTRUN_DATA")


@pytest.fixture(scope="session")
def cache() -> Iterator[Path]:
    """A folder for converted models, so that each is converted once."""
    path = Path(tempfile.mkdtemp(prefix="e2e-cache-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def _machine(cache: Path) -> Iterator[Machine]:
    # pytest's own folders are closed to the user that Postgres runs as in root's stead.
    root = Path(tempfile.mkdtemp(prefix="e2e-", dir="/tmp"))
    root.chmod(0o711)
    machine = Machine(root, cache)
    yield machine
    left = machine.processes()
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert _eventually(lambda: not machine.processes())
    shutil.rmtree(root)
    assert not left, "a test has left processes"


@pytest.fixture
def machine(cache: Path) -> Iterator[Machine]:
    """A machine of this test's own."""
    yield from _machine(cache)


@pytest.fixture(scope="session")
def shared_machine(cache: Path) -> Iterator[Machine]:
    """The machine of the stacks that many tests use."""
    yield from _machine(cache)


@pytest.fixture(scope="session")
def stack(shared_machine: Machine) -> Iterator[Up]:
    """A stack with a real model and few slots."""
    up = shared_machine.up("--ephemeral", "--json", *TINY, "--slots", "4")
    with up.running():
        yield up


@pytest.fixture(scope="session")
def slow_stack(shared_machine: Machine) -> Iterator[Up]:
    """A stack of two slots that reads and writes slowly enough to be interrupted anywhere."""
    up = shared_machine.up(
        *("--ephemeral", "--json", *SCRIPTED),
        FASTRUN_WORKER_SCRIPTED_TOKENS_PER_S="20",
        FASTRUN_WORKER_SCRIPTED_PROMPT_TOKENS_PER_S="100",
    )
    with up.running():
        yield up
