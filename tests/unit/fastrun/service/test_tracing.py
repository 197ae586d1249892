"""Traces: what is read of a traceparent, and what tracing costs where it is off."""

import subprocess
import sys

import pytest

from auth_service.config import Config as AuthConfig
from edge.config import Config as EdgeConfig
from fastrun.service import tracing
from fastrun.service.config import ConfigError, load
from fastrun.service.lifecycle import StartError
from fastrun.service.tracing import NO_TRACER, UNTRACED
from gpu_worker.config import Config as WorkerConfig
from scheduler.config import Config as SchedulerConfig

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"


def test_read():
    """A traceparent says which trace and which span."""
    assert tracing.ids_of(GOOD) == (int(TRACE, 16), int(SPAN, 16))


def test_later_versions():
    """What later versions of the standard add is passed over."""
    assert tracing.ids_of(f"01-{TRACE}-{SPAN}-03-more") == tracing.ids_of(GOOD)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x" * 55,
        GOOD.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-00",
        GOOD + "\n",
        " " + GOOD,
    ],
)
def test_not_traced(text):
    """What is malformed, or says that it is not sampled, has no parts."""
    assert tracing.ids_of(text) is None
    assert tracing.child_of(text) == ""


def test_a_part_has_an_id_of_its_own():
    """A part is of the same trace, and no two are the same span."""
    parts = {tracing.child_of(GOOD) for _ in range(100)}
    ids = [tracing.ids_of(each) for each in parts]
    assert {trace_id for trace_id, _ in ids} == {int(TRACE, 16)}
    assert len({span_id for _, span_id in ids}) == 100


def test_off_is_no_import():
    """Without a collector no service loads OpenTelemetry."""
    program = (
        "import sys, edge.app, auth_service.__main__, scheduler.__main__, gpu_worker.service\n"
        "from fastrun.service import tracing\n"
        "assert tracing.tracer('', 'edge') is tracing.NO_TRACER\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_off_makes_nothing():
    """Where nothing is traced all spans are one object."""
    assert NO_TRACER.admit(GOOD, 1.0) is UNTRACED
    assert NO_TRACER.begin(GOOD, 1.0) is UNTRACED


@pytest.mark.parametrize("kind", [EdgeConfig, AuthConfig, SchedulerConfig, WorkerConfig])
def test_disabled(kind):
    """OpenTelemetry's own switch turns tracing off where all else asks for it."""
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317",
        "OTEL_SDK_DISABLED": "True",
        "DATABASE_URL": "postgresql://127.0.0.1/x",
        "FASTRUN_AUTH_PEPPER": "ab" * 32,
    }
    config = load(kind, "auth" if kind is AuthConfig else "none", environ)
    tracer = tracing.tracer(config.otlp_endpoint, "any", disabled=config.otlp_disabled)
    assert tracer is NO_TRACER


def test_the_extra_is_missing(monkeypatch):
    """A service that is to trace and cannot says what to install."""
    monkeypatch.setitem(sys.modules, "fastrun.service.otlp", None)
    monkeypatch.delattr("fastrun.service.otlp", raising=False)
    with pytest.raises(StartError, match=r"pip install '\.\[otel\]' in fastrun's folder"):
        tracing.tracer("http://127.0.0.1:4317", "edge")


@pytest.mark.parametrize("endpoint", ["", "http://collector:4317", "https://[::1]:4317/"])
def test_endpoints(endpoint):
    """An endpoint is a URL with a host, and perhaps a port."""
    assert endpoint_of(endpoint) == endpoint


@pytest.mark.parametrize(
    "endpoint", ["collector:4317", "http://", "http://[", "grpc://x", "http://a b"]
)
def test_no_endpoints(endpoint):
    """All else is named before the service starts."""
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_ENDPOINT"):
        endpoint_of(endpoint)


def endpoint_of(text):
    """What a service reads."""
    config = load(EdgeConfig, "edge", {"OTEL_EXPORTER_OTLP_ENDPOINT": text})
    return config.otlp_endpoint
