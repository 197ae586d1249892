"""What the edge counts."""

import pytest
from prometheus_client import generate_latest

from edge.metrics import Metrics
from fastrun.v1.generation_pb2 import Usage


@pytest.fixture
def metrics():
    return Metrics(spool_limit_bytes=100)


def serve(metrics, model):
    metrics.began()
    metrics.queued(model, 0.02)
    metrics.first_delta(model, 0.1)
    metrics.used(model, Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=7))
    metrics.ended(model, "chat", 200, 0.5)


def lines(metrics):
    return generate_latest(metrics.registry).decode().splitlines()


def test_a_request_is_counted_by_its_model(metrics):
    """Status, times and tokens of a request stand under the model that it asked for."""
    for _ in range(2):
        serve(metrics, "tiny")
    for line in (
        'fastrun_edge_requests_total{endpoint="chat",model="tiny",status="200"} 2.0',
        'fastrun_edge_request_seconds_count{endpoint="chat",model="tiny"} 2.0',
        'fastrun_edge_first_delta_seconds_count{model="tiny"} 2.0',
        'fastrun_edge_queue_seconds_count{model="tiny"} 2.0',
        'fastrun_edge_tokens_total{kind="cached",model="tiny"} 4.0',
        "fastrun_edge_requests_running 0.0",
    ):
        assert line in lines(metrics)


def test_a_forgotten_model_leaves_no_series(metrics):
    """Series go with their model and begin anew if it comes back; those of no model stay."""
    for model in ("old", "new", "none", "other"):
        serve(metrics, model)
    metrics.keep({"new"})
    left = "\n".join(lines(metrics))
    assert 'model="old"' not in left
    for model in ("new", "none", "other"):
        assert f'fastrun_edge_queue_seconds_count{{model="{model}"}} 1.0' in left
    serve(metrics, "old")
    assert 'fastrun_edge_queue_seconds_count{model="old"} 1.0' in lines(metrics)
