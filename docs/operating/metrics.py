"""Writes metrics.md from the registries of the services: run it after a change of a Metrics."""  # noqa: INP001 - a script

from collections.abc import Iterator
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

import auth_service.metrics
import edge.metrics
import gpu_worker.metrics
import scheduler.metrics
from fastrun.service.metrics import new_registry
from fastrun.service.series import Series

PAGE = Path(__file__).with_suffix(".md")

HEAD = """\
# Metrics

Made by `docs/operating/metrics.py` from the `metrics.py` of each service. Change those.

Each process shows its own at `/metrics` of its admin port, in Prometheus' text format.
[Observing](observing.md) says how to look at them, and what is worth an alert.

Labels are few and small. `model` is a model that the fleet knows;
at an edge it is `other` for a name that nobody knows, and `none` where no model is asked for.
The series of a model that is forgotten go.
No label holds an account, a key, a path or a text of a client.
A histogram has three series: `_bucket`, `_sum` and `_count`.

What is counted for each token is counted at the end of its request
([decision 51](../decisions/0051-metrics-cost-tokens-nothing.md)).
"""

SERVICES = {
    "edge": lambda: edge.metrics.Metrics(spool_limit_bytes=0).registry,
    "auth_service": lambda: auth_service.metrics.Metrics().registry,
    "scheduler": lambda: scheduler.metrics.Metrics().registry,
    "gpu_worker": lambda: gpu_worker.metrics.Metrics(slots=1).registry,
}

ALL = """
Also those of the process, such as `process_cpu_seconds_total` and `process_resident_memory_bytes`,
as the Prometheus client library names them.
"""


class Metric(msgspec.Struct, frozen=True):
    """One line of a table."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def of_registry(registry: CollectorRegistry) -> Iterator[Metric]:
    """Read what was registered, in that order.

    Not by collect(), which knows no label names before there are series.
    """
    for each in dict.fromkeys(registry._names_to_collectors.values()):  # noqa: SLF001 - see above
        if isinstance(each, MetricWrapperBase | Series):
            (family,) = each.describe()
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = each.labels if isinstance(each, Series) else each._labelnames  # noqa: SLF001 - see above
            yield Metric(name, family.type, labels, family.documentation)


def tables() -> dict[str, list[Metric]]:
    """All metrics, by the service that shows them; those of every service stand first."""
    shared = list(of_registry(new_registry()))
    own = {
        service: [each for each in of_registry(registry()) if each not in shared]
        for service, registry in SERVICES.items()
    }
    return {"every service": shared, **own}


def render() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for service, metrics in tables().items():
        parts.append(f"\n## {service}\n\n| metric | kind | labels | |\n|---|---|---|---|\n")
        for each in metrics:
            labels = ", ".join(f"`{label}`" for label in each.labels)
            parts.append(f"| `{each.name}` | {each.kind} | {labels} | {each.meaning} |\n")
        parts.append(ALL if service == "every service" else "")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
