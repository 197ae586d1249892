"""`fastrun doctor` on machines on which something is wrong, each for real."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from auth_stores import PEPPERS, new_key, open_stores
from typer.testing import CliRunner

from auth_service.__main__ import AuthService
from auth_service.config import Config
from auth_service.migrate import migrate
from fastrun.cli.app import make_app
from fastrun.cli.contexts import Contexts
from fastrun.cli.doctor import host
from fastrun.cli.joined import Joined, WorkerFolder
from fastrun.local.certificates import EVERYONE, provide
from fastrun.local.postgres import Postgres
from fastrun.service import api_key
from fastrun.service.identity import Identity, Role

ROOT = Path(__file__).parents[3]
TINY = ROOT / "tests" / "models" / "tiny" / "tiny.gguf"
PEPPER = PEPPERS.current.secret.hex()
OTHER_VERSION = """
import fastrun
fastrun.__version__ = "9.0.0"
from gpu_worker.__main__ import main
main()
"""

WITHOUT_EXTRAS = """
import sys
for name in ("aiohttp", "asyncpg", "jinja2", "numpy", "openvino", "tokenizers", "uvloop"):
    sys.modules[name] = None
from fastrun.cli import main
main()
"""


@pytest.fixture
def doctor(tmp_path, monkeypatch):
    """Run it with some settings and arguments; returns its status and what is not well."""
    for name in list(os.environ):
        if name.startswith("FASTRUN_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    # Root's would be the machine's own.
    monkeypatch.setattr(host, "default_folder", lambda _environ: tmp_path / "worker")

    def run(*arguments, **environ):
        done = CliRunner().invoke(
            make_app("doctor"),
            ["doctor", "--json", *arguments],
            env=environ,
            catch_exceptions=False,
        )
        # A service of the same process may log meanwhile.
        (printed,) = [line for line in done.stdout.splitlines() if line.startswith("[{")]
        findings = json.loads(printed)
        assert done.exit_code == any(each["state"] == "wrong" for each in findings)
        return done.exit_code, {
            each["check"]: each["says"]
            for each in findings
            if each["state"] not in ("ok", "skipped")
        }

    return run


@pytest.fixture
def auth_settings():
    """An auth service of this machine, which does not run."""
    return {
        "FASTRUN_AUTH_LISTEN": "127.0.0.1:0",
        "FASTRUN_AUTH_ADMIN_LISTEN": "127.0.0.1:0",
        "FASTRUN_AUTH_PEPPER": PEPPER,
    }


@pytest.fixture
def worker_settings():
    """A worker of this machine, which does not run."""
    return {
        "FASTRUN_WORKER_LISTEN": "127.0.0.1:0",
        "FASTRUN_WORKER_ADMIN_LISTEN": "127.0.0.1:0",
        "FASTRUN_WORKER_MODEL": f"tiny={TINY}",
    }


def test_postgres_down(doctor, auth_settings):
    """It tells where Postgres should be and is not; and nothing while it is."""
    folder = Path(tempfile.mkdtemp(prefix="fastrun-test-"))
    server = Postgres(folder, durable=False, remove=folder)
    try:
        auth_settings["DATABASE_URL"] = server.start()
        assert "the database lacks 0001" in doctor(**auth_settings)[1]["postgres"]
        asyncio.run(migrate(server.dsn))
        assert doctor(**auth_settings) == (0, {})
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    status, wrong = doctor(**auth_settings)
    assert status == 1
    assert wrong.keys() == {"postgres"}
    assert "Postgres at 127.0.0.1:" in wrong["postgres"]
    assert wrong["postgres"].count("start it, or correct DATABASE_URL") == 1
    assert "cannot be reached ([Errno" in wrong["postgres"]


@pytest.fixture
async def stores(database):
    """The stores of a database without rows."""
    stores = await open_stores(database, random=Random(1))
    yield stores
    await stores.close()


async def test_wrong_pepper(doctor, auth_settings, stores):
    """It tells that the stored keys were made with another pepper, and not before there are any."""
    other = {**auth_settings, "DATABASE_URL": stores.dsn, "FASTRUN_AUTH_PEPPER": "cd" * 32}
    assert await asyncio.to_thread(doctor, **other) == (0, {})
    await stores.accounts.create("ada")
    await stores.keys.issue("ada", new_key(api_key.generate(Random(1))))
    status, wrong = await asyncio.to_thread(doctor, **other)
    assert status == 1
    assert "set FASTRUN_AUTH_PEPPER to what it was" in wrong["pepper"]
    assert await asyncio.to_thread(doctor, **{**other, "FASTRUN_AUTH_PEPPER": PEPPER}) == (0, {})
    rotated = {**other, "FASTRUN_AUTH_PREVIOUS_PEPPERS": PEPPER}
    assert await asyncio.to_thread(doctor, **rotated) == (0, {})
    retired = {**other, "FASTRUN_AUTH_PREVIOUS_PEPPERS": "retired"}
    status, wrong = await asyncio.to_thread(doctor, **retired)
    assert status == 1
    assert "is needed by keys that have not ended (1)" in wrong["pepper"]
    await stores.ask("update keys set revoked_at = now()")
    assert await asyncio.to_thread(doctor, **retired) == (0, {})


async def test_running_service(doctor, auth_settings, stores):
    """A service that runs here is asked at its admin port, and its own ports are no problem."""
    service = AuthService(
        Config(
            database_url=stores.dsn,
            pepper=PEPPER,
            listen="127.0.0.1:0",
            admin_listen="127.0.0.1:0",
        )
    )
    ports = await service.start()
    settings = {
        **auth_settings,
        "DATABASE_URL": stores.dsn,
        "FASTRUN_AUTH_LISTEN": f"127.0.0.1:{ports['grpc']}",
        "FASTRUN_AUTH_ADMIN_LISTEN": f"127.0.0.1:{ports['admin']}",
    }
    try:
        assert await asyncio.to_thread(doctor, **settings) == (0, {})
        await service.drain()
        status, wrong = await asyncio.to_thread(doctor, **settings)
        assert (status, wrong) == (
            1,
            {"service": "the auth service here is not ready: stopping"},
        )
    finally:
        await service.stop()


def test_port_taken(doctor, worker_settings):
    """It tells who has a port that a service is to listen at, or `fastrun up` is to serve."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        status, wrong = doctor(**{**worker_settings, "FASTRUN_WORKER_LISTEN": f"127.0.0.1:{port}"})
        assert status == 1
        assert f"port {port} is taken by process {os.getpid()} (" in wrong["port"]
        assert wrong["port"].endswith("choose another one by FASTRUN_WORKER_LISTEN")
        assert f"port {port} is in use" in doctor("--port", str(port))[1]["port"]


def test_expired_certificate(doctor, worker_settings, tmp_path):
    """It tells whose certificate has expired, and when."""
    long_ago = datetime.now(UTC) - timedelta(days=400)
    provide(tmp_path / "certs", EVERYONE, long_ago)
    folder = tmp_path / "certs" / "worker"
    files = {
        f"FASTRUN_WORKER_TLS_{name.upper()}": str(folder / f"{name}.pem")
        for name in ("cert", "key", "ca")
    }
    status, wrong = doctor(**worker_settings, **files)
    assert status == 1
    assert "the certificate of the worker has expired on 20" in wrong["certificate"]
    assert wrong["certificate"].endswith("fastrun certs, where the CA's key is")


def test_ports_of_an_auth_service(doctor, auth_settings, tmp_path, database):
    """Each port that it is to listen at is looked at, also that of machines that join."""
    certs = {
        each.identity.role: each.folder for each in provide(tmp_path, EVERYONE, datetime.now(UTC))
    }
    joining = {
        "DATABASE_URL": database,
        "FASTRUN_AUTH_ENROL_CA_KEY": str(tmp_path / "ca" / "key.pem"),
        **{
            f"FASTRUN_AUTH_TLS_{name.upper()}": str(certs[Role.AUTH] / f"{name}.pem")
            for name in ("cert", "key", "ca")
        },
    }
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        joining["FASTRUN_AUTH_ENROL_LISTEN"] = f"127.0.0.1:{port}"
        _, wrong = doctor(**auth_settings, **joining)
    assert wrong["port"].endswith("choose another one by FASTRUN_AUTH_ENROL_LISTEN")


def test_a_service_that_another_one_needs(doctor, tmp_path):
    """Where nothing answers it says which service to start, or by which setting to look elsewhere."""
    edge = {
        "FASTRUN_EDGE_LISTEN": "127.0.0.1:0",
        "FASTRUN_EDGE_ADMIN_LISTEN": "127.0.0.1:0",
        "FASTRUN_EDGE_SPOOL": str(tmp_path / "spool"),
        "FASTRUN_EDGE_AUTH_ADDRESS": "127.0.0.1:1",
        "FASTRUN_EDGE_SCHEDULER_ADDRESSES": "",
    }
    assert doctor(**edge)[1]["service"] == (
        "nothing answers at 127.0.0.1:1: start the auth service, let us through its firewall, "
        "or correct FASTRUN_EDGE_AUTH_ADDRESS"
    )


def test_settings_are_nearer_than_a_chosen_context(doctor, worker_settings, tmp_path):
    """Services that the environment describes are meant, also after `fastrun context use`."""
    context = tmp_path / "away.toml"
    context.write_text('auth = "127.0.0.1:1"\nscheduler = "127.0.0.1:1"\nplaintext = true\n')
    contexts = Contexts(tmp_path / "config" / "fastrun")
    contexts.add("away", context.read_text())
    contexts.use("away")
    assert doctor()[1].keys() == {"service", "accounts", "fleet"}
    assert doctor(**worker_settings) == (0, {})
    assert doctor("--context", "away", **worker_settings)[1].keys() == {
        "service",
        "accounts",
        "fleet",
    }


@pytest.fixture
def joined_worker(tmp_path, worker_settings):
    """The folder of a worker that has joined, and has told its model then."""
    made = provide(tmp_path, [Identity(Role.WORKER, "gpu-1")], datetime.now(UTC), days=0.003)
    made[0].folder.rename(tmp_path / "worker")
    WorkerFolder(tmp_path / "worker").note(
        Joined(
            head="127.0.0.1:1",
            token_sha256="",
            worker_id="gpu-1",
            schedulers=[":2"],
            auth=":3",
            port=7003,
            model=f"tiny={TINY}",
        )
    )
    del worker_settings["FASTRUN_WORKER_MODEL"]
    return tmp_path / "worker"


def test_joined_machine(doctor, tmp_path, joined_worker, worker_settings):
    """On a machine that has joined, it looks at the worker as it was told at the join."""
    status, wrong = doctor(**worker_settings)
    assert status == 1
    assert wrong.keys() == {"service", "certificate"}
    assert wrong["service"].startswith("nothing answers at 127.0.0.1:2: start the scheduler, ")
    assert "the certificate of the worker ends on" in wrong["certificate"]
    assert wrong["certificate"].endswith("join again with fastrun worker join")
    elsewhere = joined_worker.rename(tmp_path / "elsewhere")
    assert doctor("--data", str(elsewhere), **worker_settings) == (status, wrong)


def test_joined_worker_that_runs_elsewhere(doctor, joined_worker, worker_settings):
    """Where its admin port is another one, that is told, and its own port is not called taken."""
    WorkerFolder(joined_worker).take()
    with socket.create_server(("127.0.0.1", 0)) as server:
        worker_settings["FASTRUN_WORKER_LISTEN"] = f"127.0.0.1:{server.getsockname()[1]}"
        worker_settings["FASTRUN_WORKER_ADMIN_LISTEN"] = "127.0.0.1:1"
        _, wrong = doctor(**worker_settings)
    assert "port" not in wrong
    assert wrong["settings"].endswith("set FASTRUN_WORKER_ADMIN_LISTEN as it was set for it")


def test_model(doctor, worker_settings, tmp_path):
    """It tells of a model that is missing, damaged, or that the engine cannot run."""
    assert doctor(**worker_settings) == (0, {})

    def told(path):
        status, wrong = doctor(**{**worker_settings, "FASTRUN_WORKER_MODEL": f"m={path}"})
        assert status == 1
        return wrong["model"]

    missing = tmp_path / "missing.gguf"
    assert told(missing) == f"there is no model at {missing}: look at the path"
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(TINY.read_bytes()[:-4096])
    assert "is damaged or cut short: get the file again" in told(damaged)
    folder = tmp_path / "safetensors"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "tokenizer.json").write_text("{}")
    assert "the CPU engine reads GGUF files and OpenVINO folders" in told(folder)


def test_other_machines(tmp_path):
    """It runs where there is neither a database's driver nor what runs models: for operators."""
    context = tmp_path / "away.toml"
    context.write_text('auth = "127.0.0.1:1"\nscheduler = "127.0.0.1:1"\nplaintext = true\n')
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, "doctor", "--json", "--context", str(context)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert {each["check"] for each in json.loads(done.stdout)} == {"service", "accounts", "fleet"}
    assert "nothing answers at 127.0.0.1:1" in done.stdout


def test_settings(doctor, worker_settings):
    """It tells every setting that is wrong."""
    status, wrong = doctor(**worker_settings, FASTRUN_WORKER_SLOTZ="2")
    assert status == 1
    assert "FASTRUN_WORKER_SLOTZ: unknown setting, did you mean" in wrong["settings"]


def test_settings_of_a_stack_that_does_not_run(doctor, tmp_path):
    """It tells what a start would be refused for, whichever service it is about."""
    data = ("--data", str(tmp_path), "--port", "0")
    assert doctor(*data) == (0, {})
    for name, value, says in (
        ("FASTRUN_EDGE_LISTN", "x", "FASTRUN_EDGE_LISTN: unknown setting, did you mean"),
        ("FASTRUN_AUTH_POOL_SIZE", "many", "FASTRUN_AUTH_POOL_SIZE: must be a whole number"),
        ("FASTRUN_SCHEDULER_LISTEN", "127.0.0.1:1", "fastrun up sets FASTRUN_SCHEDULER_LISTEN"),
    ):
        status, wrong = doctor(*data, **{name: value})
        assert (status, wrong.keys()) == (1, {"settings"})
        assert says in wrong["settings"]


@contextmanager
def small_disk(folder):
    """A disk of 2 MB."""
    folder.mkdir()
    options = ("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder))
    done = subprocess.run(["mount", *options], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"may not mount: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a tmpfs")
def test_no_space(doctor, tmp_path):
    """It tells of a disk with little room, and of one with none."""
    folder = tmp_path / "disk"
    with small_disk(folder):
        little = doctor("--data", str(folder), "--port", "0")[1]["disk"]
        assert "has 2 MB left and data needs 100 MB: make room, or choose another" in little
        filler = folder / "filler"
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(3 << 20))
        status, wrong = doctor("--data", str(folder), "--port", "0")
    assert status == 1
    assert "0 MB left" in wrong["disk"]


@pytest.fixture
def up(machine):
    with machine.up("--ephemeral", "--json", "--engine", "scripted").running() as up:
        yield up


def test_stack(doctor, up, eventually, tmp_path):
    """A stack is well, also as a context; a worker of another version is named, in either way."""
    data = up.ready["data"]
    assert doctor("--data", data) == (0, {})
    context = tmp_path / "ada.toml"
    made = CliRunner().invoke(
        make_app("operator"), ["operator", "add", "ada", "--data", data, "-o", str(context)]
    )
    assert made.exit_code == 0, made.output
    assert doctor("--context", str(context)) == (0, {})
    certs = Path(data) / "certs" / "worker"
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER_VERSION],
        env={
            **os.environ,
            "FASTRUN_WORKER_ENGINE": "scripted",
            "FASTRUN_WORKER_WORKER_ID": "new-one",
            "FASTRUN_WORKER_LISTEN": "127.0.0.1:0",
            "FASTRUN_WORKER_ADMIN_LISTEN": "127.0.0.1:0",
            "FASTRUN_WORKER_SCHEDULER_ADDRESSES": ",".join(up.ready["scheduler_addresses"]),
            **{
                f"FASTRUN_WORKER_TLS_{name.upper()}": str(certs / f"{name}.pem")
                for name in ("cert", "key", "ca")
            },
        },
        stdout=subprocess.DEVNULL,
    )
    try:
        assert eventually(lambda: len(up.fleet().workers) == 2, 60)
        for arguments in (("--data", data), ("--context", str(context))):
            status, wrong = doctor(*arguments)
            assert status == 1
            assert wrong.keys() == {"protocol"}
            assert wrong["protocol"].startswith("the worker new-one at 127.0.0.1:")
            assert "is fastrun 9.0.0 and this one is" in wrong["protocol"]
    finally:
        other.terminate()
        other.wait()
