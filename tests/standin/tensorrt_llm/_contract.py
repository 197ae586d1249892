"""Names and defaults, from the contract that the worker brings."""

import dataclasses
import json
import os
from pathlib import Path

FILE = Path(__file__).parents[3] / "gpu_worker/engine/tensorrt_llm/contract.json"
CONTRACT = json.loads(FILE.read_text(encoding="utf-8"))
VERSION = os.environ.get("FASTRUN_STANDIN_VERSION", CONTRACT["target"])
IS_OLD = VERSION.startswith("1.2.")
_WITHOUT = set(filter(None, os.environ.get("FASTRUN_STANDIN_WITHOUT", "").split(",")))


def names(section):
    """Return the names of a section, with their defaults, that this version has."""
    later = CONTRACT["since_1_3"].get(section, ()) if IS_OLD else ()
    return {
        name: default
        for name, default in CONTRACT[section].items()
        if name not in later and f"{section}.{name}" not in _WITHOUT
    }


def record(section, **namespace):
    """Make a dataclass of a section, which takes nothing else."""
    fields = []
    for name, default in names(section).items():
        if default == "<required>":
            fields.append((name, object))
        elif default == "<factory>":
            fields.append((name, object, dataclasses.field(default_factory=object)))
        else:
            fields.append((name, object, dataclasses.field(default=default)))
    return dataclasses.make_dataclass(
        section, fields, kw_only=True, slots=True, namespace=namespace
    )
