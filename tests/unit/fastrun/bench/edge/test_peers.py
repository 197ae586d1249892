"""Which peers there are, and how they are started."""

import sys

import pytest

from fastrun.bench.edge.errors import EdgeBenchError
from fastrun.bench.edge.peers import (
    ALL,
    NAMES,
    Place,
    environ_of,
    installed,
    named,
    version,
    wanted,
)


@pytest.fixture
def folder(tmp_path):
    """An environment for smg, and nothing on the PATH."""
    program = tmp_path / "smg" / "bin" / "smg"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    return tmp_path


def test_installed(folder):
    """The relay comes along; others are looked for in environments of their own."""
    found = {"relay": sys.executable, "smg": str(folder / "smg/bin/smg")}
    assert installed(folder, "") == found
    assert installed(None, "") == {"relay": sys.executable}


def test_installed_on_the_path(folder):
    """What has no environment may be on the PATH."""
    assert installed(None, str(folder / "smg/bin"))["smg"] == str(folder / "smg/bin/smg")


def test_version(folder):
    """An environment says of which version its peer is; other programs do not."""
    package = folder / "smg/lib/python3.11/site-packages/smg-1.13.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: smg\nVersion: 1.13.0\n")
    program = str(folder / "smg/bin/smg")
    assert version("smg", program) == "1.13.0"
    assert version("nginx", program) is None


def test_wanted():
    """All that are here, or those that are named, in that order."""
    here = {"relay": "r", "smg": "s"}
    assert wanted([], here) == ["direct", "relay", "smg"]
    assert wanted(["smg", "direct"], here) == ["smg", "direct"]


@pytest.mark.parametrize(
    ("name", "sentence"), [("litellm", "is not installed: give it"), ("mine", "there is no peer")]
)
def test_peers_that_are_not_here(name, sentence):
    """Who asks for one that is not here is told what to do."""
    with pytest.raises(EdgeBenchError, match=sentence):
        wanted([name], {"relay": "r"})


@pytest.mark.parametrize("peer", ALL, ids=lambda peer: peer.name)
def test_commands_stay_on_this_machine(peer, tmp_path):
    """Each peer is told its port and its engine, and listens on the loopback only."""
    place = Place(program="program", port=4321, engine="127.0.0.1:9876", folder=tmp_path)
    told = " ".join(peer.command(place))
    told += " ".join(path.read_text() for path in tmp_path.iterdir())
    assert told.startswith("program ")
    assert "4321" in told
    assert "127.0.0.1:9876" in told
    assert "0.0.0.0" not in told


def test_environ_without_proxies():
    """No request of a peer leaves the machine by a proxy."""
    environ = environ_of(named("litellm"), {"https_proxy": "http://proxy", "HOME": "/root"})
    assert environ["HOME"] == "/root"
    assert environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
    assert "https_proxy" not in environ


def test_names_are_those_of_the_measurement():
    """The engine alone can be measured as well."""
    assert NAMES[0] == "direct"
    assert len(set(NAMES)) == len(NAMES)
