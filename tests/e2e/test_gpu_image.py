"""What deploy/Dockerfile.gpu does, in an environment with the packages of NVIDIA's image.

Those that need a GPU are empty, and TensorRT-LLM is the stand-in. Python is the image's, 3.12.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from standin_engine import STANDIN, TINY

ROOT = Path(__file__).parents[2]
# What the worker imports of it. A grpcio that is too old for the stubs has to be raised, and nothing
# else.
REAL = [
    *("protobuf==6.33.5", "grpcio==1.74.0", "typing-extensions"),
    *("jinja2", "markupsafe", "llguidance", "tokenizers", "numpy<2.4"),
]
EMPTY = {
    "torch": ("2.14.0a0+nv26.9", []),
    "transformers": ("5.5.4", []),
    # What the tokenizers ask for, and need for downloads only.
    "huggingface_hub": ("1.4.0", []),
    # It complains already, as images do.
    "tensorrt_llm": ("1.3.0rc29", ["protobuf<7,>=6.30.2", "grpcio<2,>=1.67.1", "mpi4py"]),
    # Not a version that pip takes in a constraint.
    "python_apt": ("2.7.7ubuntu5", []),
}
# Most of what comes along is never imported: it is not compiled beforehand.
PIP = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_COMPILE": "1"}
LIMIT_S = 600


def python_3_12():
    """Find one that runs: a shim may stand for none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which("python3.12"), *map(str, pyenv.glob("versions/3.12*/bin/python"))]
    return next((each for each in found if each and _version(each) == "3.12"), None)


def _version(python):
    ran = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
    )
    return ran.stdout.strip()


def run(*command, status=0, **environ):
    """Run a command to its end; return what it says."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=kept | PIP | environ,
        cwd="/",
    )
    assert ran.returncode == status, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def packages_of(python):
    """Return the folder of an environment's packages."""
    return Path(python).parents[1] / "lib" / "python3.12" / "site-packages"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, made of what .dockerignore lets through."""
    context, wheels = (tmp_path_factory.mktemp(name) for name in ("context", "wheels"))
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            source, target = ROOT / line[1:], context / line[1:]
            target.parent.mkdir(exist_ok=True)
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*_pb2*")
                shutil.copytree(source, target, ignore=ignored)
            else:
                shutil.copy(source, target)
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", str(wheels), str(context)),
    )
    return next(wheels.glob("fastrun-*.whl"))


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The Python of an environment that has what NVIDIA's image has."""
    newest = python_3_12()
    if newest is None:
        pytest.skip("there is no Python 3.12 here, which is what NVIDIA's image has")
    folder = tmp_path_factory.mktemp("image")
    run(newest, "-m", "venv", str(folder))
    python = str(folder / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", *REAL)
    for name, (version, requires) in EMPTY.items():
        info = packages_of(python) / f"{name}-{version}.dist-info"
        info.mkdir()
        metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
        metadata += [f"Requires-Dist: {each}" for each in requires]
        (info / "METADATA").write_text("\n".join(metadata) + "\n")
        (info / "RECORD").write_text("")
        (info / "INSTALLER").write_text("pip\n")
    yield python
    shutil.rmtree(folder)  # hundreds of megabytes


@pytest.fixture(scope="module")
def installed(image, wheel):
    """The same with the worker in it, and what the installation said."""
    script = str(ROOT / "deploy" / "gpu_packages.py")
    # NVIDIA's images bring constraints; a missing file would stop pip.
    said = run(
        *(image, script, f"{wheel}[otel]", "nvidia-ml-py", "--raise", "grpcio"),
        PIP_CONSTRAINT="/none",
    )
    return image, said


def test_nothing_of_the_image_changes_but_grpcio(installed):
    """protobuf, torch, transformers and all else stay; grpcio is raised, and not to 2."""
    python, said = installed
    listed = run(python, "-m", "pip", "list", "--format=freeze")
    versions = dict(line.split("==") for line in listed.splitlines() if "==" in line)
    assert versions["protobuf"] == "6.33.5"
    assert versions["torch"] == "2.14.0a0+nv26.9"
    assert (1, 76) <= tuple(map(int, versions["grpcio"].split(".")[:2])) < (2, 0)
    assert f"raised: grpcio 1.74.0 -> {versions['grpcio']}" in said
    assert "new: fastrun " in said
    assert "new: nvidia-ml-py " in said
    assert "new: opentelemetry-sdk " in said
    assert "mpi4py" not in versions


def test_the_stubs_load(installed):
    """On the image's protobuf, whose runtime refuses code of a newer generator."""
    python, _ = installed
    assert "stubs load" in run(python, str(ROOT / ".ci" / "import_stubs.py"), "6.33")


def test_the_library_is_verified(installed):
    """As the build does it; a library that lacks a name stops the build."""
    python, _ = installed
    fastrun = str(Path(python).with_name("fastrun"))
    assert "has all" in run(fastrun, "worker", "verify", PYTHONPATH=str(STANDIN))
    run(
        *(fastrun, "worker", "verify"),
        status=1,
        PYTHONPATH=str(STANDIN),
        FASTRUN_STANDIN_WITHOUT="SamplingParams.seed",
    )
    run(fastrun, "worker", "verify", status=1)


def test_the_worker_serves_there(installed):
    """Without aiohttp, asyncpg, uvloop and OpenVINO: every check of smoke passes."""
    python, _ = installed
    said = run(
        *(str(Path(python).with_name("fastrun")), "worker", "smoke", "--json"),
        *("--model", f"tiny={TINY}", "--prompt-tokens", "500"),
        PYTHONPATH=str(STANDIN),
        FASTRUN_WORKER_ENGINE="tensorrt-llm",
        FASTRUN_WORKER_SLOTS="3",
    )
    lines = json.loads(next(line for line in said.splitlines() if line.startswith("[")))
    assert {line["verdict"] for line in lines} == {"ok"}


def test_an_image_that_would_have_to_change_stops_the_build(installed, wheel):
    """A package that the worker needs newer is named, and stays as it is."""
    python, _ = installed
    [metadata] = packages_of(python).glob("rich-*.dist-info/METADATA")
    metadata.write_text(
        re.sub(r"(?m)^Version: .*", "Version: 13.9.4", metadata.read_text(), count=1)
    )
    script = str(ROOT / "deploy" / "gpu_packages.py")
    said = run(python, script, str(wheel), "nvidia-ml-py", status=1)
    assert "rich" in said
    assert "rich==13.9.4" in run(python, "-m", "pip", "list", "--format=freeze")
