"""What the scheduler counts."""

import pytest
from prometheus_client import generate_latest

from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.scheduler_pb2 import WatchFleetResponse
from scheduler.metrics import Metrics


def test_decisions_and_gauges_are_exported():
    """Slots of gone workers do not count; refusals are named by their reason."""
    metrics = Metrics()
    metrics.granted("tiny", 0.02)
    metrics.rejected(ErrorReason.ERROR_REASON_QUEUE_FULL)
    metrics.used("tiny", 100, 60)
    metrics.failing("tiny")
    worker = {"model": "tiny", "slots": 4, "slots_in_use": 1}
    metrics.observe(
        WatchFleetResponse(
            workers=[worker | {"state": "serving"}, worker | {"state": "gone"}],
            queues=[{"model": "tiny", "waiting": 2, "bound": 16}],
            drift=1,
            edges=3,
            term=7,
        )
    )
    text = generate_latest(metrics.registry).decode()
    for line in (
        'fastrun_scheduler_grants_total{model="tiny"} 1.0',
        'fastrun_scheduler_rejections_total{reason="queue_full"} 1.0',
        'fastrun_scheduler_wait_seconds_count{model="tiny"} 1.0',
        'fastrun_scheduler_prompt_tokens_total{model="tiny"} 100.0',
        'fastrun_scheduler_cached_tokens_total{model="tiny"} 60.0',
        'fastrun_scheduler_breakers_opened_total{model="tiny"} 1.0',
        'fastrun_scheduler_queue_waiting{model="tiny"} 2.0',
        'fastrun_scheduler_slots{model="tiny"} 4.0',
        'fastrun_scheduler_slots_in_use{model="tiny"} 1.0',
        'fastrun_scheduler_workers{state="serving"} 1.0',
        'fastrun_scheduler_workers{state="gone"} 1.0',
        'fastrun_scheduler_workers{state="suspect"} 0.0',
        'fastrun_scheduler_workers{state="failing"} 0.0',
        "fastrun_scheduler_drift 1.0",
        "fastrun_scheduler_edges 3.0",
        "fastrun_scheduler_term 7.0",
    ):
        assert line in text.splitlines()


@pytest.mark.parametrize("told_before", [True, False])
def test_a_forgotten_model_leaves_no_series(told_before):
    """Neither gauges nor counters, whether it was ever shown or not; and it may come back."""
    metrics = Metrics()

    def serve(model):
        metrics.granted(model, 0.02)
        metrics.used(model, 100, 60)
        metrics.failing(model)

    def show(*models):
        metrics.observe(WatchFleetResponse(queues=[{"model": model} for model in models]))
        return generate_latest(metrics.registry).decode()

    serve("old")
    if told_before:
        assert show("new", "old").count('model="old"') > 8
    text = show("new")
    assert 'model="old"' not in text
    assert 'fastrun_scheduler_queue_waiting{model="new"} 0.0' in text
    serve("old")
    assert 'fastrun_scheduler_grants_total{model="old"} 1.0' in show("new", "old")
