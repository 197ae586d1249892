"""A file of settings that a page shows is one that the services take."""

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from fastrun.service import config

OPERATING = Path(__file__).parents[2] / "docs" / "operating"
BLOCK = re.compile(r"^```toml\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
PACKAGES = {
    "edge": "edge",
    "auth": "auth_service",
    "scheduler": "scheduler",
    "worker": "gpu_worker",
}


def settings_files():
    for page in sorted(OPERATING.glob("*.md")):
        for text in BLOCK.findall(page.read_text(encoding="utf-8")):
            if PACKAGES.keys() & tomllib.loads(text):
                yield pytest.param(text, id=page.stem)


FILES = list(settings_files())


@pytest.mark.parametrize("text", FILES)
def test_services_start_with_it(text, tmp_path):
    """Each service finds all that it must be told, and nothing that it does not know."""
    path = tmp_path / "fastrun.toml"
    path.write_text(text.replace('pepper = "..."', f'pepper = "{"ab" * 32}"'))
    environ = {"FASTRUN_CONFIG": str(path), "DATABASE_URL": "postgresql://fastrun@127.0.0.1/x"}
    for service in tomllib.loads(text):
        kind = import_module(f"{PACKAGES[service]}.config").Config
        assert config.load(kind, service, environ).tls_ca == f"certs/{service}/ca.pem"


def test_a_file_is_shown():
    """The test above has something to look at."""
    assert FILES
