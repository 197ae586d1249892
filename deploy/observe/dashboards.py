"""Writes the dashboards in grafana/dashboards from the tables below: run it after a change."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).with_name("grafana") / "dashboards"
SOURCE = {"type": "prometheus", "uid": "prometheus"}
COLUMNS, WIDTH, HEIGHT = 24, 8, 8
EACH = "[$__rate_interval]"
MODEL = '{model=~"$model"}'


class Panel(msgspec.Struct, frozen=True):
    """One graph: what its lines are called, and how each is computed."""

    title: str
    unit: str
    lines: Mapping[str, str]


def quantiles(metric: str, *shares: float, where: str = "", of: str = "") -> dict[str, str]:
    """Lines for shares of a histogram, such as 0.95; `of` joins what is not in its labels."""
    rate = f"rate({metric}_bucket{where}{EACH}){of}"
    return {
        f"p{share * 100:g}": f"histogram_quantile({share:g}, sum by (le) ({rate}))"
        for share in shares
    }


def rate(metric: str, *by: str, where: str = "") -> str:
    """How often something is counted each second, in all or by labels."""
    return f"sum by ({', '.join(by)}) (rate({metric}{where}{EACH}))"


OF_MODEL = ' * on (instance) group_left (model) fastrun_worker_model_info{model=~"$model"}'

REQUESTS = [
    Panel(
        "Requests by status",
        "reqps",
        {"{{status}}": rate("fastrun_edge_requests_total", "status", where=MODEL)},
    ),
    Panel(
        "Requests by model",
        "reqps",
        {"{{model}}": rate("fastrun_edge_requests_total", "model", where=MODEL)},
    ),
    Panel("Requests being answered", "short", {"all": "sum(fastrun_edge_requests_running)"}),
    Panel(
        "To the first text",
        "s",
        quantiles("fastrun_edge_first_delta_seconds", 0.5, 0.95, 0.99, where=MODEL),
    ),
    Panel(
        "From one token to the next",
        "s",
        quantiles("fastrun_worker_inter_token_seconds", 0.5, 0.95, 0.99, of=OF_MODEL),
    ),
    Panel(
        "In the queue",
        "s",
        quantiles("fastrun_edge_queue_seconds", 0.5, 0.95, 0.99, where=MODEL),
    ),
    Panel(
        "To the end of the answer",
        "s",
        quantiles(
            "fastrun_edge_request_seconds", 0.5, 0.95, where='{model=~"$model", model!="none"}'
        ),
    ),
    Panel(
        "Tokens a second",
        "short",
        {"{{kind}}": rate("fastrun_edge_tokens_total", "kind", where=MODEL)},
    ),
    Panel(
        "Prompt tokens that were cached",
        "percentunit",
        {
            "{{model}}": rate(
                "fastrun_edge_tokens_total", "model", where='{kind="cached", model=~"$model"}'
            )
            + " / "
            + rate("fastrun_edge_tokens_total", "model", where='{kind="prompt", model=~"$model"}')
        },
    ),
    Panel(
        "Refused by the scheduler",
        "reqps",
        {"{{reason}}": rate("fastrun_scheduler_rejections_total", "reason")},
    ),
    Panel(
        "Tried again, gone on elsewhere",
        "ops",
        {
            "again: {{reason}}": rate("fastrun_edge_retries_total", "reason"),
            "elsewhere: {{reason}}": rate("fastrun_edge_resumes_total", "reason"),
        },
    ),
    Panel(
        "Usage records by how they ended",
        "ops",
        {"{{status}}": rate("fastrun_edge_usage_records_total", "status")},
    ),
]

FLEET = [
    Panel(
        "Slots",
        "short",
        {
            "{{model}}": f"max by (model) (fastrun_scheduler_slots{MODEL})",
            "{{model}} in use": f"max by (model) (fastrun_scheduler_slots_in_use{MODEL})",
        },
    ),
    Panel(
        "Waiting",
        "short",
        {"{{model}}": f"max by (model) (fastrun_scheduler_queue_waiting{MODEL})"},
    ),
    Panel(
        "Waited for a slot",
        "s",
        quantiles("fastrun_scheduler_wait_seconds", 0.5, 0.95, 0.99, where=MODEL),
    ),
    Panel("Workers", "short", {"{{state}}": "max by (state) (fastrun_scheduler_workers)"}),
    Panel(
        "Grants",
        "ops",
        {"{{model}}": rate("fastrun_scheduler_grants_total", "model", where=MODEL)},
    ),
    Panel(
        "Prompt tokens that were cached",
        "percentunit",
        {
            "{{model}}": rate("fastrun_scheduler_cached_tokens_total", "model", where=MODEL)
            + " / "
            + rate("fastrun_scheduler_prompt_tokens_total", "model", where=MODEL)
        },
    ),
    Panel(
        "Leases that no worker lists, workers that began to fail",
        "short",
        {
            "drift": "max(fastrun_scheduler_drift)",
            "began to fail": "sum(increase(fastrun_scheduler_breakers_opened_total[5m]))",
        },
    ),
    Panel(
        "Leader",
        "short",
        {
            "{{instance}} leads": "fastrun_scheduler_leads",
            "edges at {{instance}}": "fastrun_scheduler_edges",
            "term": "max(fastrun_scheduler_term)",
        },
    ),
    Panel(
        "A decision takes", "s", quantiles("fastrun_scheduler_decision_seconds", 0.5, 0.99, 0.999)
    ),
    Panel(
        "Slots in use at each worker",
        "percentunit",
        {"{{instance}}": "fastrun_worker_slots_in_use / fastrun_worker_slots"},
    ),
    Panel(
        "Memory for the KV cache in use",
        "percentunit",
        {"{{instance}}": "fastrun_worker_kv_blocks_used / (fastrun_worker_kv_blocks > 0)"},
    ),
    Panel(
        "In the engines",
        "short",
        {
            "{{instance}} running": "fastrun_worker_engine_running",
            "{{instance}} waiting": "fastrun_worker_engine_waiting",
        },
    ),
    Panel(
        "Tokens in the engines",
        "short",
        {
            "{{instance}} to prefill": "fastrun_worker_engine_prefill_tokens",
            "{{instance}} held": "fastrun_worker_engine_context_tokens",
        },
    ),
    Panel(
        "To a worker's first token",
        "s",
        quantiles("fastrun_worker_first_token_seconds", 0.5, 0.95, of=OF_MODEL),
    ),
    Panel(
        "A worker's requests by how they ended",
        "ops",
        {"{{end}}": rate("fastrun_worker_requests_total", "end")},
    ),
    Panel(
        "Tokens a second of each worker",
        "short",
        {
            "{{instance}}": rate(
                "fastrun_worker_tokens_total", "instance", where='{kind="completion"}'
            )
        },
    ),
    Panel(
        "A request at a worker takes",
        "s",
        quantiles("fastrun_worker_request_seconds", 0.5, 0.95, of=OF_MODEL),
    ),
    Panel(
        "Engines",
        "short",
        {
            "{{instance}} healthy": "fastrun_worker_engine_healthy",
            "{{instance}} put back": "fastrun_worker_engine_preemptions",
        },
    ),
]

SERVICES = [
    Panel("Up", "short", {"{{job}} {{instance}}": "up"}),
    Panel("Versions", "short", {"{{version}}": "count by (version) (fastrun_build_info)"}),
    Panel(
        "Processors in use",
        "short",
        {"{{job}} {{instance}}": f"rate(process_cpu_seconds_total{EACH})"},
    ),
    Panel("Memory", "bytes", {"{{job}} {{instance}}": "process_resident_memory_bytes"}),
    Panel("Open files", "short", {"{{job}} {{instance}}": "process_open_fds"}),
    Panel(
        "Keys looked up at edges",
        "ops",
        {"{{answer}}": rate("fastrun_edge_key_lookups_total", "answer")},
    ),
    Panel(
        "Edges that know what changes", "short", {"{{instance}}": "fastrun_edge_key_watch_current"}
    ),
    Panel(
        "Keys looked up in Postgres",
        "ops",
        {
            "{{outcome}}": rate("fastrun_auth_verified_total", "outcome"),
            "edges that watch": "sum(fastrun_auth_watches)",
        },
    ),
    Panel("A look-up takes", "s", quantiles("fastrun_auth_verify_seconds", 0.5, 0.99)),
    Panel(
        "Usage spool",
        "percentunit",
        {"{{instance}}": "fastrun_edge_spool_bytes / fastrun_edge_spool_limit_bytes"},
    ),
    Panel(
        "Usage records",
        "ops",
        {
            "edges: {{outcome}}": rate("fastrun_edge_usage_deliveries_total", "outcome"),
            "taken: {{outcome}}": rate("fastrun_auth_usage_records_total", "outcome"),
            "unreadable": "sum(rate(fastrun_edge_spool_corrupt_lines_total[$__rate_interval]))",
        },
    ),
    Panel("Committing usage takes", "s", quantiles("fastrun_auth_record_usage_seconds", 0.5, 0.99)),
]

DASHBOARDS = {"requests": REQUESTS, "fleet": FLEET, "services": SERVICES}


def render(name: str, panels: Sequence[Panel]) -> str:
    """Return a dashboard as Grafana reads it."""
    uses_model = any("$model" in line for panel in panels for line in panel.lines.values())
    dashboard = {
        "uid": f"fastrun-{name}",
        "title": f"fastrun {name}",
        "tags": ["fastrun"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_models()] if uses_model else []},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }
    return json.dumps(dashboard, indent=2) + "\n"


def _models() -> dict[str, Any]:
    query = "label_values(fastrun_edge_requests_total, model)"
    return {
        "name": "model",
        "label": "Model",
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "models"},
        "refresh": 2,
        "sort": 1,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, COLUMNS // WIDTH)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + at), "expr": query, "legendFormat": legend}
            for at, (legend, query) in enumerate(panel.lines.items())
        ],
    }


if __name__ == "__main__":
    for name, panels in DASHBOARDS.items():
        (FOLDER / f"{name}.json").write_text(render(name, panels), encoding="utf-8")
