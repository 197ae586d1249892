"""The manners of `fastrun up`."""

import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.fixture
def no_memory_left(eventually):
    """Tell whether all shared memory is gone that is newer than the test.

    Others who set up a Postgres meanwhile have some as well, for a moment.
    """
    before = shared_memory()
    return lambda: eventually(lambda: shared_memory() <= before)


def shared_memory():
    return {path.name for path in Path("/dev/shm").iterdir()}


def kept(machine):
    """What is in the data folder of a machine's user."""
    return {path.name for path in machine.data.rglob("*")}


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("sleep 300 & exit 0", 0),
        ("sleep 300 & exit 7", 7),
        ("sleep 300 & kill -KILL $$", 128 + signal.SIGKILL),
        ("kill -KILL $PPID", 128 + signal.SIGKILL),
    ],
)
def test_status_of_exec(machine, scripted, no_memory_left, command, status):
    """A run with --exec ends with the status of its command and leaves nothing behind."""
    done = machine.run("up", "--ephemeral", *scripted, "--exec", command)

    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert machine.nothing_left()
    assert no_memory_left()
    assert kept(machine) == set()


def test_environment_of_exec(machine, scripted):
    """A command finds the stack by what an OpenAI client and `fastrun` itself read."""
    command = (
        "env | grep -E '^(OPENAI|NO_PROXY|no_proxy)' && command -v fastrun && fastrun fleet --json"
    )

    done = machine.run("up", "--ephemeral", *scripted, "--exec", command, NO_PROXY="example.org")

    *lines, program, fleet = done.stdout.splitlines()
    found = dict(line.split("=", 1) for line in lines)
    assert found["OPENAI_BASE_URL"].startswith("http://127.0.0.1:")
    assert found["OPENAI_BASE_URL"].endswith("/v1")
    assert found["OPENAI_API_KEY"].startswith("fr_")
    assert found["OPENAI_MODEL"] == "scripted"
    assert found["NO_PROXY"] == "example.org,127.0.0.1,localhost"
    assert found["no_proxy"] == "127.0.0.1,localhost"
    assert Path(program).parent == Path(sys.executable).parent
    assert json.loads(fleet)["workers"][0]["slots"] == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_stops_all(machine, scripted, no_memory_left, number):
    """A signal stops everything in order, and nothing of an ephemeral run is left."""
    up = machine.up("--ephemeral", "--json", *scripted).wait_ready()

    assert up.stop(number) == 0
    assert not machine.processes()
    assert machine.nothing_left()
    assert no_memory_left()


@pytest.mark.parametrize(("command", "status"), [((), 0), (("--exec", "true"), 130)], ids=str)
def test_signal_while_starting(machine, scripted, eventually, command, status):
    """A signal before all serves stops what has been started; a command that was to run failed."""
    up = machine.up("--ephemeral", *scripted, *command)
    assert eventually(lambda: any("-m scheduler" in each for each in machine.processes().values()))

    assert up.stop(signal.SIGINT) == status
    assert machine.nothing_left()


def test_kill_ephemeral(machine, scripted, no_memory_left):
    """Kill -9 of an ephemeral run leaves neither a process nor a file."""
    up = machine.up("--ephemeral", "--json", *scripted).wait_ready()
    assert len(machine.processes()) > 5

    up.stop(signal.SIGKILL)

    assert machine.nothing_left()
    assert no_memory_left()


def test_kill_with_command(machine, scripted, eventually):
    """Kill -9 ends the command and what it has started, too."""
    up = machine.up("--ephemeral", *scripted, "--exec", "sleep 300 & echo started; sleep 300")
    assert up.process.stdout.readline() == "started\n"

    up.stop(signal.SIGKILL)

    assert machine.nothing_left()


def test_kill_keeps_data(machine, scripted):
    """After kill -9 the next start finds the same account and key, and the former one's data."""
    up = machine.up("--json", "--port", "0", *scripted).wait_ready()
    key = up.ready["api_key"]
    up.stop(signal.SIGKILL)

    again = machine.up("--json", "--port", "0", *scripted).wait_ready()

    assert again.ready["api_key"] == key
    with again.client() as client:
        assert client.models.list().data
    assert again.stop() == 0
    assert machine.nothing_left()


def test_kept_secrets_are_private(machine, scripted):
    """What is kept between runs can be read by its owner only."""
    up = machine.up("--json", "--port", "0", *scripted).wait_ready()
    data = Path(up.ready["data"])
    modes = {
        name: (data / name).stat().st_mode & 0o777 for name in ("api-key", "pepper", "state.json")
    }

    assert up.stop() == 0
    assert modes == dict.fromkeys(modes, 0o600)
    assert not (data / "state.json").exists()


def test_reset(machine, scripted):
    """A reset forgets the former key."""
    keys = []
    for options in ((), ("--reset",)):
        up = machine.up("--json", "--port", "0", *options, *scripted).wait_ready()
        keys.append(up.ready["api_key"])
        assert up.stop() == 0

    assert keys[0] != keys[1]


def test_already_running(machine, scripted):
    """A second stack in the same folder says where the first one is; `fastrun down` stops it."""
    up = machine.up("--json", "--port", "0", *scripted).wait_ready()

    second = machine.run("up")

    assert second.returncode == 1
    pid = up.process.pid
    assert second.stderr.startswith(f"fastrun: already running at {up.base_url}, pid {pid}: stop")
    assert machine.run("down").stdout == "stopped\n"
    assert up.end() == 0


def test_port_in_use(machine, scripted):
    """A port that somebody has is named, and nothing is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = machine.run("up", *scripted, "--port", str(port))

    assert done.returncode == 1
    assert f"fastrun: port {port} is in use: choose another one with --port" in done.stderr
    assert machine.nothing_left()


def test_service_that_cannot_start(machine, scripted):
    """A service that cannot start is named with its own reason, and nothing is left running."""
    done = machine.run("up", "--ephemeral", *scripted, FASTRUN_SCHEDULER_GRACE="1")

    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith("fastrun: scheduler could not start: ")
    assert "FASTRUN_SCHEDULER_GRACE: unknown setting" in message
    assert machine.nothing_left()


def test_setting_that_is_not_heeded(machine, scripted):
    """A setting that `fastrun up` decides itself is refused, with the option to use instead."""
    done = machine.run("up", "--ephemeral", *scripted, FASTRUN_EDGE_LISTEN="0.0.0.0:80")

    assert done.returncode == 1
    assert done.stderr == (
        "fastrun: fastrun up sets FASTRUN_EDGE_LISTEN itself "
        "(use --port to choose the public one): leave it unset\n"
    )
    assert machine.nothing_left()


def test_model_that_is_not_there(machine):
    """A model that does not exist is named."""
    done = machine.run("up", "--ephemeral", "--model", "mine=/nowhere/model.gguf")

    assert done.returncode == 1
    assert "there is no model at /nowhere/model.gguf" in done.stderr
    assert machine.nothing_left()


def test_odd_folder(machine, scripted):
    """A data folder with blanks whose path is longer than a socket's may be works."""
    data = machine.root / "a folder with blanks" / ("long" * 25)
    data.parent.mkdir()
    data.parent.chmod(0o711)
    up = machine.up("--json", "--port", "0", "--data", str(data), *scripted).wait_ready()

    assert up.ready["data"] == str(data)
    assert up.stop() == 0


def test_dead_service_is_started_again(machine, scripted, eventually):
    """A service that dies is started again, and the stack answers again; the death is told."""
    up = machine.up("--ephemeral", "--json", *scripted).wait_ready()
    before = up.fleet().workers[0].instance_id
    worker = next(pid for pid, name in machine.processes().items() if "-m gpu_worker" in name)
    os.kill(worker, signal.SIGKILL)

    def is_back():
        return any(
            each.state == "serving" and each.instance_id != before for each in up.fleet().workers
        )

    assert eventually(is_back)
    with up.client() as client:
        answer = client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "Hello"}], max_tokens=5
        )
    assert answer.usage.completion_tokens == 5
    up.process.send_signal(signal.SIGTERM)
    assert "worker ended with SIGKILL" in up.process.stderr.read()
    assert up.end() == 0


def test_worker_drained_by_hand(machine, scripted):
    """A worker that is asked to end finishes what runs, though all would stop sooner than that."""
    up = machine.up(
        *("--ephemeral", "--json", *scripted), FASTRUN_WORKER_SCRIPTED_TOKENS_PER_S="10"
    ).wait_ready()
    worker = next(pid for pid, name in machine.processes().items() if "-m gpu_worker" in name)
    tokens = 60  # 6 s
    with up.client() as client:
        chunks = client.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=tokens,
            stream=True,
            stream_options={"include_usage": True},
        )
        next(chunks)
        os.kill(worker, signal.SIGTERM)
        *_, last = chunks

    assert last.usage.completion_tokens == tokens
    assert up.stop() == 0


def test_edges_and_workers(machine, scripted):
    """Several edges share one port, and several workers share the load."""
    up = machine.up(
        *("--ephemeral", "--json", "--edges", "2", "--workers", "2", *scripted)
    ).wait_ready()
    fleet = up.fleet()

    assert (fleet.edges, len(fleet.workers)) == (2, 2)
    with up.client() as client:
        assert client.models.list().data
    assert up.stop() == 0
    assert machine.nothing_left()


def test_past_a_proxy(machine, scripted):
    """A proxy in the environment that nobody serves breaks nothing."""
    proxy = "http://127.0.0.1:9"
    command = "fastrun fleet --json"

    done = machine.run(
        *("up", "--ephemeral", *scripted, "--exec", command),
        http_proxy=proxy,
        https_proxy=proxy,
        HTTP_PROXY=proxy,
        ALL_PROXY=proxy,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["drift"] == 0


def test_past_other_databases(machine, scripted):
    """What is set for the tools of Postgres is not for the stack's own, which offers no TLS."""
    said = {"PGSSLMODE": "require", "PGHOST": "192.0.2.1", "PGOPTIONS": "-c statement_timeout=1"}
    with (
        machine.up("--ephemeral", "--json", *scripted, **said).running() as up,
        up.client() as client,
    ):
        assert [model.id for model in client.models.list()] == ["scripted"]
