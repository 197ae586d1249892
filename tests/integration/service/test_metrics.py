"""The admin port."""

import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Counter

from fastrun.service.metrics import AdminServer


def fetch(port, path):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def admin():
    registry = CollectorRegistry()
    Counter("fastrun_test_things", "Things.", registry=registry).inc(3)
    problems = {"alive": None, "ready": None}
    server = AdminServer(registry, alive=lambda: problems["alive"], ready=lambda: problems["ready"])
    port = server.start("127.0.0.1", 0)
    yield port, problems
    server.close()


def test_metrics_are_served(admin):
    """The registry's metrics come out in Prometheus' text format."""
    status, body = fetch(admin[0], "/metrics")
    assert status == 200
    assert "fastrun_test_things_total 3.0" in body


def test_checks_say_what_is_wrong(admin):
    """A check that fails gives 503 with its sentence, and ok otherwise."""
    port, problems = admin
    assert fetch(port, "/readyz") == (200, "ok\n")
    problems["ready"] = "no scheduler is connected"
    assert fetch(port, "/readyz") == (503, "no scheduler is connected\n")
    assert fetch(port, "/healthz") == (200, "ok\n")


def test_other_paths_are_not_found(admin):
    """Any other path is a 404 that says which there are."""
    status, body = fetch(admin[0], "/")
    assert status == 404
    assert "/metrics" in body


def test_a_taken_port_is_named(admin):
    """The sentence says which one it is, since nothing else in a service's log does."""
    port, _ = admin
    other = AdminServer(CollectorRegistry(), alive=lambda: None, ready=lambda: None)
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: is the port in use"):
        other.start("127.0.0.1", port)
