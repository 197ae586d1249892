"""The page of metrics says what the services count."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs/operating/metrics.py"


def test_the_page_of_metrics_is_what_the_registries_say():
    """Every metric stands on the page with its labels; run the script beside it if not."""
    spec = importlib.util.spec_from_file_location("metrics_page", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text(encoding="utf-8") == script.render()
