"""compose.yaml is what compose accepts, and every service in it is watched."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
from packaging.requirements import Requirement

from auth_service.config import Config as AuthConfig
from edge.config import Config as EdgeConfig
from fastrun.cli.app import COMMANDS
from fastrun.local.certificates import EVERYONE, folder_name
from fastrun.service import config, probe
from gpu_worker.config import Config as WorkerConfig
from scheduler.config import Config as SchedulerConfig

ROOT = Path(__file__).parents[2]
CONFIGS = {
    "auth": AuthConfig,
    "scheduler": SchedulerConfig,
    "worker": WorkerConfig,
    "edge": EdgeConfig,
}


def document():
    return msgspec.yaml.decode((ROOT / "compose.yaml").read_bytes())


def services():
    return document()["services"]


def passed_on(service, dotenv=None):
    """What compose sets in a container: a variable without a value comes from .env, or not at all."""
    given = {
        name: (dotenv or {}).get(name) if value is None else value
        for name, value in service["environment"].items()
    }
    return {name: value for name, value in given.items() if value is not None}


def settings(kind, service):
    environment = passed_on(service)
    if url := environment.get("DATABASE_URL"):
        environment["DATABASE_URL"] = re.sub(r"\$\{POSTGRES_PASSWORD:\?[^}]*\}", "secret", url)
    if kind == "auth":
        environment["FASTRUN_AUTH_PEPPER"] = "ab" * 32
        environment["FASTRUN_AUTH_PREVIOUS_PEPPERS"] = ""
    return config.load(CONFIGS[kind], kind, environment)


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
    for name in CONFIGS:
        settings(name, services()[name])


def test_tracing_is_turned_on_in_one_place():
    """A collector in .env is that of every service, whose images can trace."""
    dotenv = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317",
        "OTEL_SDK_DISABLED": "true",
        "FASTRUN_EDGE_TRACE_SHARE": "0.5",
    }
    for name in (*CONFIGS, "scheduler-2", "gpu-worker"):
        given = passed_on(services()[name], dotenv)
        assert given["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317", name
        assert given["OTEL_SDK_DISABLED"] == "true", name
    assert passed_on(services()["edge"], dotenv)["FASTRUN_EDGE_TRACE_SHARE"] == "0.5"
    for lock in re.findall(r"--require-hashes -r (\S*)", (ROOT / "deploy/Dockerfile").read_text()):
        if lock != "requirements/build.txt":
            assert "\nopentelemetry-sdk==" in (ROOT / lock).read_text(), lock


def test_every_service_has_a_health_check():
    """What runs for long is checked; what runs once is waited for."""
    for name, service in services().items():
        if name in ("migrate", "certs", "operator"):
            assert service["restart"] == "no"
        else:
            assert service["healthcheck"]["test"], name


def test_health_is_asked_where_the_service_tells_it():
    """Each service of ours is probed at its own admin port."""
    for name, service in services().items():
        listens = [
            value
            for variable, value in service.get("environment", {}).items()
            if variable.endswith("_ADMIN_LISTEN")
        ]
        if listens:
            told = service["healthcheck"]["test"]
            assert told[:4] == ["CMD", "python", "-m", probe.__name__], name
            assert told[4].rpartition(":")[2] == listens[0].rpartition(":")[2], name


def test_postgres_is_healthy_only_when_others_reach_it():
    """Its health is asked over TCP, where the server that makes the database does not listen."""
    assert "--host=127.0.0.1" in services()["postgres"]["healthcheck"]["test"]


def test_each_image_is_built_once():
    """Of the services that run an image of ours exactly one builds it."""
    built = [service["image"] for service in services().values() if "build" in service]
    ours = {service["image"] for service in services().values() if "fastrun" in service["image"]}
    assert sorted(built) == sorted(ours)


def test_only_the_edge_is_published_and_only_here():
    """Only this machine reaches what is published, unless HTTPS for everybody is asked for."""
    published = {name: each["ports"] for name, each in services().items() if "ports" in each}
    for name in ("edge", "prometheus", "grafana"):
        assert all(port.startswith("127.0.0.1:") for port in published.pop(name))
    assert list(published) == ["https"]
    assert services()["https"]["profiles"] == ["https"]


def test_every_container_is_confined():
    """None has more rights than it needs, writes into its image, or fills the disk with logs."""
    needed = {"https": ["NET_BIND_SERVICE"]}
    built = {service["image"] for service in services().values() if "build" in service}
    for name, service in services().items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service.get("cap_add", []) == needed.get(name, []), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name
        if service["image"] not in built:
            assert service["user"].split(":")[0] not in ("", "0", "root"), name


def test_no_image_runs_as_root():
    """What is built ends as another user, whichever target is chosen."""
    for name in ("Dockerfile", "Dockerfile.gpu"):
        users = {}
        for stage in re.split(r"(?m)^FROM ", (ROOT / "deploy" / name).read_text())[1:]:
            base, *named = stage.splitlines()[0].split(" AS ")
            said = re.findall(r"(?m)^USER (\S+)", stage)
            users["".join(named)] = said[-1] if said else users.get(base, "root")
        targets = [
            service["build"].get("target", "")
            for service in services().values()
            if service.get("build", {}).get("dockerfile") == f"deploy/{name}"
        ]
        assert targets
        assert all(users[target].split(":")[0] not in ("0", "root") for target in targets)


def test_what_stops_is_waited_for():
    """A service is killed only after the time that it gives to what it answers."""
    for name, service in services().items():
        given_s = int(service["stop_grace_period"].removesuffix("s"))
        kind = name.removeprefix("gpu-").removesuffix("-2")
        if kind in CONFIGS:
            assert given_s > settings(kind, service).grace_s, name


def test_no_secret_stands_in_the_file():
    """Passwords, keys and the pepper come from .env, and compose stops without them."""
    optional = {"FASTRUN_AUTH_PREVIOUS_PEPPERS": "${FASTRUN_PREVIOUS_PEPPERS:-}"}
    for name, service in services().items():
        for variable, value in service.get("environment", {}).items():
            if variable in optional:
                assert value == optional[variable]
            elif re.search("PASSWORD|PEPPER|SECRET|TOKEN|DATABASE_URL", variable):
                assert re.search(r"\$\{\w+:\?set \w+ in \.env\}", value), f"{name}: {variable}"


def test_every_volume_is_named():
    """What outlives a container lies in a volume that is declared, or in a file of this tree."""
    declared = set(document()["volumes"])
    used = set()
    for name, service in services().items():
        for mount in service.get("volumes", ()):
            source = mount.split(":/")[0]
            if re.fullmatch(r"[\w-]+", source):
                used.add(source)
            else:
                assert mount.endswith(":ro"), f"{name} could write into {source}"
    assert used == declared


def test_what_starts_waits_for_what_it_needs():
    """Whatever waits for a service waits until that is healthy, or has succeeded."""
    for name, service in services().items():
        for needed, how in service.get("depends_on", {}).items():
            runs_once = services()[needed]["restart"] == "no"
            wanted = "service_completed_successfully" if runs_once else "service_healthy"
            assert how == {"condition": wanted}, f"{name} on {needed}"


def test_an_operator_waits_for_nothing():
    """What is broken can be looked at, and is not started by who looks."""
    assert "depends_on" not in services()["operator"]


def test_a_gpu_worker_has_what_its_engine_needs():
    """GPUs, shared memory and pinned memory are reserved, only in the profile `gpu`."""
    service = services()["gpu-worker"]
    assert service["profiles"] == ["gpu"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert service["shm_size"] == "8gb"
    assert service["ulimits"] == {"memlock": -1, "stack": 64 << 20}
    assert settings("worker", service).engine == "tensorrt-llm"


def test_https_is_in_front_of_the_edge():
    """The proxy passes on to the edge's port, and each setting of its file is given."""
    said = (ROOT / "deploy" / "https" / "Caddyfile").read_text()
    port = services()["edge"]["environment"]["FASTRUN_EDGE_LISTEN"].rpartition(":")[2]
    assert f"reverse_proxy edge:{port}" in said
    environment = services()["https"]["environment"]
    assert set(re.findall(r"\{\$(\w+)", said)) == set(environment)
    assert services()["https"]["healthcheck"]["test"][-1].rstrip("/") in said


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
    assert mounted.pop("gpu-worker") == mounted["worker"]
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
    for lock in ("requirements/build.txt", "requirements/server.txt", "requirements/cpu.txt"):
        assert lock in dockerfile
        assert (ROOT / lock).exists(), lock


def test_the_image_is_built_by_tools_that_are_locked():
    """What builds the project has one version, by its hash, and it is one that pyproject.toml takes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    locked = (ROOT / "requirements" / "build.txt").read_text()
    versions = dict(re.findall(r"(?m)^([\w.-]+)==(\S+) \\$", locked))
    for requirement in map(Requirement, project["build-system"]["requires"]):
        assert versions[requirement.name] in requirement.specifier
    assert len(versions) == len(
        re.findall("(?m)^[a-z].*(?:\n    --hash=sha256:[0-9a-f]{64}.*)+", locked)
    )
