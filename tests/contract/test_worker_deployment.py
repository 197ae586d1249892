"""What a head and its GPU servers are deployed with, beside compose.yaml."""

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from auth_service.config import Config as AuthConfig
from fastrun.cli.app import COMMANDS
from fastrun.service import config
from gpu_worker.config import Config as WorkerConfig

ROOT = Path(__file__).parents[2]
HEAD = ROOT / "deploy" / "head" / "compose.yaml"
WORKER = ROOT / "deploy" / "worker" / "compose.yaml"
PASSWORD = "${POSTGRES_PASSWORD:?set POSTGRES_PASSWORD in .env}"
UNIT = ROOT / "deploy" / "worker" / "fastrun-worker.service"


def services(path):
    return yaml.safe_load(path.read_text())["services"]


def unit():
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read_string(UNIT.read_text())
    return parser["Service"]


@pytest.mark.parametrize("path", [HEAD, WORKER], ids=["head", "worker"])
def test_it_fits_the_compose_schema(path):
    """The compose specification's own JSON Schema finds nothing wrong."""
    result = subprocess.run(
        [
            *(sys.executable, "-m", "check_jsonschema"),
            *("--builtin-schema", "vendor.compose-spec", str(path)),
        ],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_head_publishes_what_workers_need():
    """Auth service, schedulers and the port to join at, and no service that compose.yaml lacks."""
    base, head = services(ROOT / "compose.yaml"), services(HEAD)
    assert set(head) <= set(base)
    published = [port for each in head.values() for port in each.get("ports", ())]
    environment = {**base["auth"]["environment"], **head["auth"]["environment"]}
    environment["DATABASE_URL"] = environment["DATABASE_URL"].replace(PASSWORD, "secret")
    environment["FASTRUN_AUTH_PEPPER"] = "ab" * 32
    environment["FASTRUN_AUTH_PREVIOUS_PEPPERS"] = ""
    # What has no value comes from .env, where there is none.
    given = {name: value for name, value in environment.items() if value is not None}
    loaded = config.load(AuthConfig, "auth", given)

    told = [*loaded.enrol_scheduler_addresses, loaded.enrol_auth_address]
    ports = {int(address.rpartition(":")[2]) for address in (*told, loaded.enrol_listen)}
    assert {int(port.partition(":")[0]) for port in published} == ports
    schedulers = {
        name for name, each in base.items() if each.get("command") == ["python", "-m", "scheduler"]
    }
    assert len(loaded.enrol_scheduler_addresses) == len(schedulers)
    assert schedulers <= {name for name, each in head.items() if "ports" in each}
    assert "certs-ca:/var/lib/fastrun/certs/ca:ro" in head["auth"]["volumes"]


def test_a_worker_joins_by_its_compose_file():
    """It runs a command of ours with settings of a worker, and there is no secret in the file."""
    worker = services(WORKER)["worker"]
    assert worker["command"][:3] == ["fastrun", "worker", "join"]
    assert worker["command"][1] in COMMANDS
    assert worker["environment"]["FASTRUN_JOIN_TOKEN"] == "${FASTRUN_JOIN_TOKEN:-}"
    loaded = config.load(WorkerConfig, "worker", worker["environment"])
    assert loaded.grace_s > loaded.drain_s
    assert float(worker["stop_grace_period"].removesuffix("s")) > loaded.grace_s
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    declared = set(yaml.safe_load(WORKER.read_text())["volumes"])
    named = {each.partition(":")[0] for each in worker["volumes"] if each[0] not in "./$"}
    assert named == declared


def test_the_worker_folder_is_in_the_image():
    """A new volume takes over the owner of a folder that the image has."""
    lines = (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    (made,) = [line for line in lines if "mkdir cache" in line]
    assert "mkdir -m 700 spool worker &&" in made


def test_the_unit_waits_for_a_drain():
    """The unit kills a worker only after it could have drained, and starts it always."""
    settings = dict(
        each.split("=")
        for line in UNIT.read_text().splitlines()
        if line.startswith("Environment=FASTRUN")
        for each in line.removeprefix("Environment=").split()
    )
    loaded = config.load(WorkerConfig, "worker", settings)
    assert float(unit()["TimeoutStopSec"]) > loaded.grace_s > loaded.drain_s
    assert unit()["Restart"] == "always"
    assert "worker run" in unit()["ExecStart"]
    folder = unit()["ExecStart"].rpartition("--data ")[2]
    assert folder == f"/var/lib/{unit()['StateDirectory']}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path):
    """Where systemd is installed, it knows every key and value."""
    there = UNIT.read_text().replace("/opt/fastrun/bin/fastrun", sys.executable)
    (tmp_path / UNIT.name).write_text(there)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / UNIT.name)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
