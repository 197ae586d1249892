"""What the edge tells of a request's trace, and hands on of it."""

import pytest
from collector import collecting

from fastrun.service import tracing
from fastrun.v1.error_pb2 import ErrorReason

CHAT = "/v1/chat/completions"
FAILED = ErrorReason.ERROR_REASON_ENGINE_FAILED
CLIENTS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = CLIENTS.removesuffix("01") + "00"


@pytest.fixture
def collector(monkeypatch):
    """A collector that is told soon."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    with collecting() as collector:
        yield collector


def ids(traceparent):
    """Trace and span of a traceparent."""
    _, trace_id, span_id, _ = traceparent.split("-")
    return trace_id, span_id


def whole_of(collector):
    """The span of the request, once it is told; it is the last one."""
    spans = collector.until(lambda spans: any(span.name == "chat" for span in spans))
    (whole,) = (span for span in spans if span.name == "chat")
    return whole, [span for span in spans if span is not whole]


async def test_one_trace(start, body, collector):
    """A request is a trace: what scheduler and worker are asked names their parents in it."""
    async with start(otlp_endpoint=collector.endpoint) as up:
        answer = await up.client.post(CHAT, json=body())
        assert answer.status_code == 200
        whole, (attempt,) = whole_of(collector)
        assert (whole.service, whole.parent_id, whole.failed) == ("fastrun-edge", "", False)
        assert attempt.parent_id == whole.span_id
        (acquire,), (run,) = up.scheduler.acquires, up.worker.runs
        assert ids(acquire.traceparent) == (whole.trace_id, whole.span_id)
        assert ids(run.request.traceparent) == (whole.trace_id, attempt.span_id)
        assert whole.began_ns <= attempt.began_ns <= attempt.ended_ns <= whole.ended_ns
        assert attempt.facts["fastrun.worker_id"] == whole.facts["fastrun.worker_id"]
        assert whole.facts["fastrun.request_id"] == run.request.request_id


@pytest.mark.parametrize("begun", [False, True])
async def test_each_attempt_is_told(start, body, collector, begun):
    """A request that is tried again, or goes on elsewhere, has a span for each worker it was on."""
    async with start(workers=2, otlp_endpoint=collector.endpoint) as up:

        def lose(run):
            run.accept(resumable=True)
            if begun:
                run.delta("Hello")
            run.fail(FAILED)

        up.worker.script = lose
        up.workers[1].script = lambda run: run.answer(", world")
        answer = await up.client.post(CHAT, json=body())
        assert answer.status_code == 200
        whole, attempts = whole_of(collector)
        runs = [worker.runs[0].request.traceparent for worker in up.workers]
        assert [ids(each) for each in runs] == [(each.trace_id, each.span_id) for each in attempts]
        assert {each.parent_id for each in attempts} == {whole.span_id}
        assert [each.failed for each in attempts] == [True, False]
        assert attempts[0].facts["fastrun.failure"] == "engine_failed"
        assert len({each.traceparent for each in up.scheduler.acquires}) == 1
        assert whole.facts["fastrun.resumed" if begun else "fastrun.retried"] == 1


async def test_a_clients_trace_goes_on(start, body, collector):
    """A request with a traceparent is a part of its client's trace."""
    async with start(otlp_endpoint=collector.endpoint, trace_share=0) as up:
        await up.client.post(CHAT, json=body(), headers={"traceparent": CLIENTS})
        whole, _ = whole_of(collector)
        assert (whole.trace_id, whole.parent_id) == ids(CLIENTS)


@pytest.mark.parametrize("sent", [UNSAMPLED, ""])
async def test_what_is_not_sampled_is_not_told(start, body, collector, sent):
    """Neither what its client does not trace, nor what is beyond the share, goes anywhere."""
    async with start(otlp_endpoint=collector.endpoint, trace_share=0) as up:
        await up.client.post(CHAT, json=body(), headers={"traceparent": sent} if sent else {})
        await up.client.post(CHAT, json=body(), headers={"traceparent": CLIENTS})
        whole, rest = whole_of(collector)
        assert whole.trace_id == ids(CLIENTS)[0]
        assert [each.trace_id for each in rest] == [whole.trace_id]
        assert up.worker.runs[0].request.traceparent == ""
        assert up.scheduler.acquires[0].traceparent == ""


async def test_nothing_of_it_where_it_is_off(start, body):
    """Without a collector a client's trace ends at the edge."""
    async with start() as up:
        await up.client.post(CHAT, json=body(), headers={"traceparent": CLIENTS})
        assert up.worker.runs[0].request.traceparent == ""
        assert up.scheduler.acquires[0].traceparent == ""


async def test_only_the_api_is_traced(start, body, collector):
    """Health checks and pages are not told."""
    async with start(otlp_endpoint=collector.endpoint) as up:
        for path in ("/healthz", "/readyz", "/", "/docs"):
            await up.client.get(path)
        await up.client.post(CHAT, json=body())
        whole, rest = whole_of(collector)
        assert {each.trace_id for each in rest} == {whole.trace_id}


async def test_no_content_and_no_keys(start, body, collector):
    """A span holds no prompt, no answer and no key, also where the request is refused."""
    async with start(otlp_endpoint=collector.endpoint) as up:
        up.worker.script = lambda run: run.answer("Swordfish")
        asked = body(messages=[{"role": "user", "content": "Swordfish?"}])
        for fields in ({}, {"model": "Swordfish"}, {"tools": "Swordfish"}):
            await up.client.post(CHAT, json={**asked, **fields})
        bad = {"authorization": "Bearer Swordfish"}
        await up.client.post(CHAT, json=asked, headers=bad)
        spans = collector.until(lambda spans: sum(span.name == "chat" for span in spans) == 4)
        assert "Swordfish" not in repr(spans)
        assert up.key not in repr(spans)


async def test_a_refusal_of_ours_has_failed(start, body, collector):
    """A request that ends by a fault of ours is marked, and one by a fault of its client is not."""
    async with start(otlp_endpoint=collector.endpoint) as up:
        up.worker.script = lambda run: run.fail(ErrorReason.ERROR_REASON_INTERNAL)
        assert (await up.client.post(CHAT, json=body())).status_code >= 500
        assert (await up.client.post(CHAT, json={})).status_code == 400
        spans = collector.until(lambda spans: sum(span.name == "chat" for span in spans) == 2)
        assert [span.failed for span in spans if span.name == "chat"] == [True, False]


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9", "https://127.0.0.1:9", "http://x.invalid"]
)
async def test_no_collector_harms_nobody(start, body, monkeypatch, endpoint):
    """With nobody at the endpoint requests are answered, and it stops."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    async with start(otlp_endpoint=endpoint) as up:
        for _ in range(3):
            answer = await up.client.post(CHAT, json=body())
            assert answer.status_code == 200
        assert tracing.ids_of(up.worker.runs[0].request.traceparent)
