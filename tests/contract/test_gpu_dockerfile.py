"""What deploy/Dockerfile.gpu names is there, and fits what it is deployed with.

The image itself is NVIDIA's and needs its registry; what the build does in it is tried by
tests/e2e/test_gpu_image.py.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fastrun.service import config
from gpu_worker.config import Config
from gpu_worker.engine.tensorrt_llm import contract

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile.gpu").read_text()


def settings():
    """What it sets for whatever runs in it."""
    lines = [line.removeprefix("ENV ") for line in DOCKERFILE.splitlines() if "ENV " in line[:4]]
    return dict(each.split("=", 1) for line in lines for each in line.split())


def last(instruction):
    """The JSON form of the last CMD in a line of its own, such as that of HEALTHCHECK."""
    return json.loads(re.findall(rf"^{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)[-1])


def test_it_is_the_version_that_the_worker_is_written_for():
    """The contract names it."""
    (version,) = re.findall(r"^ARG TENSORRT_LLM=(.*)$", DOCKERFILE, re.MULTILINE)
    assert version == contract.read()["target"]


def test_what_it_copies_is_let_through():
    """.dockerignore lets nothing through that it does not name."""
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY ([a-z]\S*) ", DOCKERFILE, re.MULTILINE)
    assert copied
    for path in copied:
        assert (ROOT / path).exists(), path
        assert f"!{path}" in allowed or f"!{Path(path).parent}" in allowed, path


def test_its_settings_are_the_workers():
    """A slip would end every worker at its start."""
    loaded = config.load(Config, "worker", settings())
    assert loaded.engine == "tensorrt-llm"


def test_it_fits_compose():
    """The folders of the volumes, the cache, the health check and the port."""
    (worker,) = yaml.safe_load((ROOT / "deploy/worker/compose.yaml").read_text())[
        "services"
    ].values()
    for volume in worker["volumes"]:
        folder = volume.split(":")[1]
        if folder.startswith("/var/lib"):
            assert f" {folder}" in DOCKERFILE
    assert settings()["XDG_CACHE_HOME"] == worker["environment"]["XDG_CACHE_HOME"]
    assert f"CMD {json.dumps(worker['healthcheck']['test'][1:])}" in DOCKERFILE


def test_it_fits_kubernetes():
    """The user that owns the volumes, and the module that is run."""
    documents = yaml.safe_load_all((ROOT / "deploy/kubernetes/worker.yaml").read_text())
    (pod,) = [each["spec"]["template"]["spec"] for each in documents if "template" in each["spec"]]
    user = pod["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in DOCKERFILE
    assert f"useradd --uid {user} --gid {user} " in DOCKERFILE
    assert pod["containers"][0]["command"] == last("CMD")


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="there is no hadolint")
def test_hadolint_finds_nothing():
    """Where it is installed."""
    ran = subprocess.run(
        ["hadolint", ROOT / "deploy" / "Dockerfile.gpu"], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (0, "")
