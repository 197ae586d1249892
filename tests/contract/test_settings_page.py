"""The page of settings says what the services read."""

import importlib.util
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from fastrun.service import config

SERVICES = {
    "edge": "edge",
    "auth": "auth_service",
    "scheduler": "scheduler",
    "worker": "gpu_worker",
}
SCRIPT = Path(__file__).parents[2] / "docs/operating/configuration.py"


def test_the_page_of_settings_is_what_the_configs_say():
    """Every setting stands on the page with its default; run the script beside it if not."""
    spec = importlib.util.spec_from_file_location("settings_page", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text(encoding="utf-8") == script.render()


@pytest.mark.parametrize(("service", "module"), SERVICES.items())
def test_no_number_is_without_end(service, module):
    """Of times and counts that no message between services holds, each setting says what it takes."""
    kind = import_module(f"{module}.config").Config
    numbers = [each.name for each in msgspec.structs.fields(kind) if _is_number(each.default)]
    endless = {f"FASTRUN_{service.upper()}_{name.upper()}": "9" * 20 for name in numbers}
    for value in ("inf", "nan", "9" * 20):
        with pytest.raises(config.ConfigError) as caught:
            config.load(kind, service, dict.fromkeys(endless, value))
        wrong = {problem.partition(":")[0] for problem in caught.value.problems}
        assert endless.keys() <= wrong


@pytest.mark.parametrize(("service", "module"), SERVICES.items())
def test_what_all_services_have_is_checked_by_all(service, module):
    """A level that logs do not have, and a port that would stand for another, are refused."""
    kind = import_module(f"{module}.config").Config
    wrong = {"LOG_LEVEL": "loud", "LISTEN": "127.0.0.1:99999", "ADMIN_LISTEN": "127.0.0.1:65536"}
    environ = {f"FASTRUN_{service.upper()}_{name}": value for name, value in wrong.items()}
    with pytest.raises(config.ConfigError) as caught:
        config.load(kind, service, environ)
    assert environ.keys() <= {each.partition(":")[0] for each in caught.value.problems}
    largest = {f"FASTRUN_{service.upper()}_LISTEN": "127.0.0.1:65535"}
    assert config.load_one(kind, service, "listen", largest) == "127.0.0.1:65535"


def _is_number(default):
    return isinstance(default, int | float) and not isinstance(default, bool)
