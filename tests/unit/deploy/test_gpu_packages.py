"""What the GPU image's build decides about packages."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "deploy" / "gpu_packages.py"


@pytest.fixture(scope="module")
def script():
    """The script, which is no part of the project's packages."""
    spec = importlib.util.spec_from_file_location("gpu_packages", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BEFORE = {"torch": "2.14.0a0+nv26.9", "grpcio": "1.74.0", "protobuf": "6.33.5"}


def test_names_are_read_as_pip_compares_them(script):
    """A package is the same however it is spelled; what is no package is passed over."""
    listed = "tensorrt_llm==1.3.0rc29\nPyYAML==6.0\nruamel.yaml==1.2\n\nWARNING: old pip\n"
    assert script.packages(listed) == {
        "tensorrt-llm": "1.3.0rc29",
        "pyyaml": "6.0",
        "ruamel-yaml": "1.2",
    }


def test_what_is_there_stays_or_is_raised(script):
    """NVIDIA's own versions are constraints; a version that pip does not know is none."""
    lines = script.constraints({**BEFORE, "python-apt": "2.7.7ubuntu5"}, ["grpcio"])
    assert lines == ["torch==2.14.0a0+nv26.9", "grpcio>=1.74.0", "protobuf==6.33.5"]


def test_every_change_is_named(script):
    """Gone, another version, raised though nobody allowed it."""
    after = {"torch": "2.14.0a0+nv26.9", "grpcio": "1.80.0", "rich": "15.0.0"}
    assert script.problems(BEFORE, after, ["grpcio"]) == ["protobuf was 6.33.5 and is gone"]
    assert script.problems(BEFORE, BEFORE | {"grpcio": "1.80.0"}, []) == [
        "grpcio was 1.74.0 and is 1.80.0"
    ]
    assert script.problems({"grpcio": "1.74.0"}, {}, ["grpcio"]) == [
        "grpcio was 1.74.0 and is gone"
    ]
    assert script.problems(BEFORE, BEFORE | {"rich": "15.0.0"}, []) == []


def test_old_complaints_are_not_ours(script):
    """The image may have some of its own."""
    old = "a 1 requires b, which is not installed."
    new = "c 1 has requirement d<2, but you have d 3."
    assert script.new_complaints([old], [old, new]) == [new]
    assert script.new_complaints([old], []) == []
