"""OpenVINO, imported in one place, so that it stays silent on the network."""

import sys
from typing import Any


def import_openvino() -> Any:
    """Import OpenVINO without its telemetry, which would report the import over the network."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type] # None forbids it
    import openvino  # noqa: PLC0415 - the line above has to come first

    return openvino
