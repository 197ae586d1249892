"""What the edge counts."""

import pytest
from prometheus_client import generate_latest

from edge.metrics import Metrics
from fastrun.v1.generation_pb2 import Usage


@pytest.fixture
def metrics():
    return Metrics(spool_limit_bytes=100)


def serve(metrics, model):
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


def test_a_request_counts_in_every_bucket_that_it_fits_into(metrics):
    """Buckets have upper bounds, which count as within, and each holds what the smaller ones do."""
    for seconds in (0.004, 0.25, 9999):
        metrics.queued("tiny", seconds)
    shown = lines(metrics)
    for bound, count in (("0.005", 1), ("0.1", 1), ("0.25", 2), ("600.0", 2), ("+Inf", 3)):
        line = f'fastrun_edge_queue_seconds_bucket{{le="{bound}",model="tiny"}} {count}.0'
        assert line in shown
    assert 'fastrun_edge_queue_seconds_count{model="tiny"} 3.0' in shown
    assert 'fastrun_edge_queue_seconds_sum{model="tiny"} 9999.254' in shown


def test_what_alerts_ask_for_is_there_before_it_happens(metrics):
    """A rate over a series that begins with its first event would miss that event."""
    for line in (
        'fastrun_edge_usage_deliveries_total{outcome="refused"} 0.0',
        'fastrun_edge_key_lookups_total{answer="grace"} 0.0',
        'fastrun_edge_key_lookups_total{answer="unavailable"} 0.0',
        "fastrun_edge_spool_corrupt_lines_total 0.0",
    ):
        assert line in lines(metrics)


def test_who_looks_sees_how_many_run(metrics):
    """Requests under way are asked for at each look."""
    running = 3
    metrics.runs(lambda: running)
    assert "fastrun_edge_requests_running 3.0" in lines(metrics)
