"""What a worker tells of a request's time."""

import pytest

from fastrun.service.tracing import Span
from fastrun.v1.generation_pb2 import GenerateRequest, Usage
from gpu_worker.generation import Outcome
from gpu_worker.spans import tell

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Tracer:
    """Keeps what it is told."""

    def __init__(self):
        self.told = {}

    def begin(self, parent, began_at):
        above = parent if isinstance(parent, str) else parent.traceparent
        return Span(f"{above}/{began_at:g}", above, began_at)

    def end(self, span, name, ended_at, facts, *, failed=False):
        self.told[name] = (span.parent, span.began_at, ended_at, failed, facts)


def told(outcome, **request):
    """What is told of an outcome, by name; it ended at 100."""
    tracer = Tracer()
    tell(tracer, GenerateRequest(**{"traceparent": PARENT, **request}), outcome, 100.0)
    return tracer.told


def test_prefill_then_decode():
    """From the engine's getting the prompt to the first token, and from there to the end."""
    usage = Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=7)
    spans = told(
        Outcome(usage=usage, end="stop", prefill_s=1.0, first_token_s=3.0, duration_s=10.0),
        request_id="r",
        resume_token_ids=[1, 2],
    )
    parent, *times, failed, facts = spans["generation"]
    assert (parent, times, failed) == (PARENT, [90.0, 100.0], False)
    assert facts == {
        "request_id": "r",
        "generation": 0,
        "end": "stop",
        "resumed_tokens": 2,
        "prompt_tokens": 5,
        "cached_tokens": 2,
        "completion_tokens": 7,
    }
    assert spans["prefill"] == (f"{PARENT}/90", 91.0, 93.0, False, {})
    assert spans["decode"] == (f"{PARENT}/90", 93.0, 100.0, False, {})


def test_ended_in_prefill():
    """What ends before its first token has no decode."""
    spans = told(Outcome(prefill_s=1.0, duration_s=10.0))
    assert spans["prefill"][1:3] == (91.0, 100.0)
    assert "decode" not in spans


def test_never_reached_the_engine():
    """What is refused has neither."""
    assert set(told(Outcome(end="refused", duration_s=0.1))) == {"generation"}


@pytest.mark.parametrize(
    ("end", "failed"),
    [("crashed", True), ("engine_failed", True), ("aborted", False), ("moved", False)],
)
def test_faults(end, failed):
    """A fault of the worker is marked; what was asked of it is none."""
    assert told(Outcome(end=end))["generation"][3] is failed


def test_not_traced():
    """Without a traceparent nothing is told."""
    assert told(Outcome(end="stop"), traceparent="") == {}
