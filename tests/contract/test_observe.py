"""What deploy/observe asks Prometheus for is what the services show."""

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
OBSERVE = ROOT / "deploy/observe"
NAME = re.compile(r"\b(?:fastrun_\w+|process_\w+|up|ALERTS)\b")
SELECTED = re.compile(r"(\w+)\s*\{([^}]*)\}")
GROUPED = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
TEMPLATED = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")
# Prometheus adds these itself, or they belong to a histogram's buckets.
ALWAYS = {"job", "instance", "le"}
OTHERS = {
    "up": set(),
    "process_cpu_seconds_total": set(),
    "process_resident_memory_bytes": set(),
    "process_open_fds": set(),
}


def script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def yaml(path):
    return msgspec.yaml.decode(path.read_bytes())


@pytest.fixture(scope="module")
def series():
    """The labels of every series that the services show, by its name."""
    found = {name: set(labels) for name, labels in OTHERS.items()}
    for metrics in script(ROOT / "docs/operating/metrics.py").tables().values():
        for metric in metrics:
            ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
            found |= {metric.name + end: set(metric.labels) for end in ends}
    return found


def alerts():
    return [rule for group in yaml(OBSERVE / "alerts.yml")["groups"] for rule in group["rules"]]


def dashboards():
    return [json.loads(path.read_text()) for path in (OBSERVE / "grafana/dashboards").glob("*")]


def panels():
    return [panel for dashboard in dashboards() for panel in dashboard["panels"]]


def check(query, texts, series):
    """Fail for a name or a label that no service shows, in a query or in what is said of it."""
    query = re.sub(r'"[^"]*"', '""', query)
    names = NAME.findall(query)
    assert names, query
    for name in names:
        assert name in series, f"{name} in {query}"
    for name, matchers in SELECTED.findall(query):
        for label in re.findall(r"(\w+)\s*[=!]", matchers):
            assert label in series[name] | ALWAYS, f"{name}{{{label}}} in {query}"
    known = set().union(*(series[name] for name in names)) | ALWAYS
    grouped = [label for labels in GROUPED.findall(query) for label in labels.split(",")]
    for label in (
        *map(str.strip, grouped),
        *(each for text in texts for each in TEMPLATED.findall(text)),
    ):
        assert label in known, f"{label} with {query}"


def test_alerts_ask_for_what_is_shown(series):
    """Names and labels of every alert, and of what it says, are those of the services."""
    for alert in alerts():
        check(alert["expr"], [alert["annotations"]["summary"]], series)


def test_dashboards_ask_for_what_is_shown(series):
    """Names and labels of every line of every dashboard are those of the services."""
    for panel in panels():
        for target in panel["targets"]:
            check(target["expr"], [target["legendFormat"]], series)


@pytest.mark.parametrize(
    "query",
    [
        "fastrun_edge_nothing_total",
        "fastrun_edge_queue_seconds",
        'fastrun_edge_tokens_total{account="a"}',
        "sum by (worker) (fastrun_edge_tokens_total)",
    ],
)
def test_a_wrong_query_is_noticed(series, query):
    """A name, a suffix or a label that nobody shows does not pass."""
    with pytest.raises(AssertionError, match="fastrun_edge"):
        check(query, [], series)


def test_every_metric_is_shown_or_alerted(series):
    """Nothing is counted that nobody looks at."""
    asked = " ".join(
        [alert["expr"] for alert in alerts()]
        + [target["expr"] for panel in panels() for target in panel["targets"]]
    )
    ends = ("_bucket", "_sum", "_count")
    names = {re.sub(f"({'|'.join(ends)})$", "_bucket", name) for name in series}
    assert names - set(NAME.findall(asked)) == set()


def test_dashboards_are_what_their_script_writes():
    """Run deploy/observe/dashboards.py if not."""
    written = script(OBSERVE / "dashboards.py")
    for name, shown in written.DASHBOARDS.items():
        path = written.FOLDER / f"{name}.json"
        assert path.read_text(encoding="utf-8") == written.render(name, shown), name
    assert {path.stem for path in written.FOLDER.glob("*")} == set(written.DASHBOARDS)


def test_dashboards_fit_what_provisions_them():
    """Every panel has its place, its own id, and the source that Grafana is given."""
    sources = yaml(OBSERVE / "grafana/provisioning/datasources/prometheus.yml")["datasources"]
    uids = {source["uid"] for source in sources}
    for dashboard in dashboards():
        places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in dashboard["panels"]]
        assert len(set(places)) == len(places)
        assert len({each["id"] for each in dashboard["panels"]}) == len(places)
        variables = {each["name"] for each in dashboard["templating"]["list"]}
        for panel in dashboard["panels"]:
            assert panel["datasource"]["uid"] in uids
            used = set(
                re.findall(r"\$([a-z]\w*)", " ".join(each["expr"] for each in panel["targets"]))
            )
            assert used <= variables


def test_an_alert_says_what_to_do():
    """Each alert has its own name, how urgent it is, and one sentence."""
    names = [alert["alert"] for alert in alerts()]
    assert len(set(names)) == len(names)
    for alert in alerts():
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert re.fullmatch(r".{15,}: .{10,}\.", alert["annotations"]["summary"]), alert["alert"]


def test_containers_are_scraped_where_they_show_metrics():
    """Every service of compose.yaml with an admin port is a target, on that port, and no other."""
    services = yaml(ROOT / "compose.yaml")["services"]
    shown = {
        name: int(address.rpartition(":")[2])
        for name, service in services.items()
        for variable, address in service.get("environment", {}).items()
        if variable.endswith("_ADMIN_LISTEN")
        if not address.startswith("127.")
    }
    scraped = {
        name: found["port"]
        for job in yaml(OBSERVE / "prometheus.yml")["scrape_configs"]
        for found in job["dns_sd_configs"]
        for name in found["names"]
    }
    assert scraped == shown


def test_containers_find_their_files():
    """What compose.yaml mounts into Prometheus and Grafana is there, and where they look for it."""
    services = yaml(ROOT / "compose.yaml")["services"]
    mounted = {}
    for name in ("prometheus", "grafana"):
        for mount in services[name]["volumes"]:
            source, target, *_ = mount.split(":")
            if source.startswith("./"):
                assert (ROOT / source).is_dir(), source
                mounted[target] = ROOT / source
    config = services["prometheus"]["command"][0].partition("=")[2]
    assert (mounted["/etc/prometheus"] / Path(config).name).is_file()
    provider = yaml(OBSERVE / "grafana/provisioning/dashboards/fastrun.yml")["providers"][0]
    assert mounted[provider["options"]["path"]] == OBSERVE / "grafana/dashboards"
    url = yaml(OBSERVE / "grafana/provisioning/datasources/prometheus.yml")["datasources"][0]["url"]
    assert url == "http://prometheus:9090"


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts.test.yml"),
    ],
)
def test_promtool_agrees(arguments):
    """Prometheus' own tool takes the files, and the alerts fire for what they are for."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; it comes with Prometheus")
    result = subprocess.run(
        [promtool, *arguments], cwd=OBSERVE, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
