"""compose.yaml is what compose accepts, and every service in it is watched."""

import subprocess
import sys
from pathlib import Path

import msgspec

from auth_service.config import Config as AuthConfig
from edge.config import Config as EdgeConfig
from fastrun.cli.app import COMMANDS
from fastrun.local.certificates import EVERYONE, folder_name
from fastrun.service import config
from gpu_worker.config import Config as WorkerConfig
from scheduler.config import Config as SchedulerConfig

ROOT = Path(__file__).parents[2]
CONFIGS = {
    "auth": AuthConfig,
    "scheduler": SchedulerConfig,
    "worker": WorkerConfig,
    "edge": EdgeConfig,
}


def services():
    return msgspec.yaml.decode((ROOT / "compose.yaml").read_bytes())["services"]


def test_it_fits_the_compose_schema():
    """The compose specification's own JSON Schema finds nothing wrong."""
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "check_jsonschema",
            "--builtin-schema",
            "vendor.compose-spec",
            str(ROOT / "compose.yaml"),
        ],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_setting_is_one_of_its_service():
    """The environment of each service loads into that service's Config."""
    for name, kind in CONFIGS.items():
        environment = dict(services()[name]["environment"])
        if name == "auth":
            environment["FASTRUN_AUTH_PEPPER"] = "ab" * 32
        config.load(kind, name, environment)


def test_every_service_has_a_health_check():
    """What runs for long is checked; what runs once is waited for."""
    for name, service in services().items():
        if name in ("migrate", "certs", "operator"):
            assert service["restart"] == "no"
        else:
            assert service["healthcheck"]["test"], name


def test_only_the_edge_is_published_and_only_here():
    """Nothing but the edge can be reached from outside, and that only from this machine."""
    published = {name: each["ports"] for name, each in services().items() if "ports" in each}
    assert list(published) == ["edge"]
    assert all(port.startswith("127.0.0.1:") for port in published["edge"])


def test_each_service_sees_its_own_certificate_only():
    """Only what makes certificates sees them all, and the CA's key; the others cannot write."""
    folders = {folder_name(each): each for each in EVERYONE}
    mounted = {
        name: [each for each in service.get("volumes", ()) if each.startswith("certs-")]
        for name, service in services().items()
    }
    home = "/var/lib/fastrun/certs"

    assert mounted.pop("certs") == [
        f"certs-{name}:{home}/{name}"
        for name in ("ca", "auth", "scheduler", "worker", "edge", "operator")
    ]
    assert mounted.pop("scheduler-2") == mounted["scheduler"]
    assert {name for name in mounted if mounted[name]} == set(folders)
    for name in folders:
        assert mounted[name] == [f"certs-{name}:{home}/{name}:ro"]
        if name in CONFIGS:
            settings = services()[name]["environment"]
            for file in ("cert", "key", "ca"):
                variable = f"FASTRUN_{name.upper()}_TLS_{file.upper()}"
                assert settings[variable] == f"{home}/{name}/{file}.pem"


def test_every_command_is_one():
    """What runs in a container is a command of ours or the module of a service."""
    for name, service in services().items():
        command = [*service.get("entrypoint", ()), *service.get("command", ())]
        if command[:1] == ["fastrun"]:
            assert command[1] in COMMANDS, name


def test_the_image_copies_only_what_exists():
    """Every path that the Dockerfile and .dockerignore name is there."""
    names = [
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    for name in names:
        assert (ROOT / name).exists(), name
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert {folder_name(each) for each in EVERYONE} <= set(dockerfile.split())
    for lock in ("requirements/server.txt", "requirements/cpu.txt"):
        assert lock in dockerfile
        assert (ROOT / lock).exists(), lock
