"""The page of settings says what the services read."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs/operating/configuration.py"


def test_the_page_of_settings_is_what_the_configs_say():
    """Every setting stands on the page with its default; run the script beside it if not."""
    spec = importlib.util.spec_from_file_location("settings_page", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text(encoding="utf-8") == script.render()
