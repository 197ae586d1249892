"""What the edge does when a worker refuses, fails, dies or falls silent."""

import asyncio
import json

import pytest

from edge.attempt import Attempt
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import FinishReason

CHAT = "/v1/chat/completions"


def error_of(response, status):
    assert response.status_code == status, response.text
    return response.json()["error"]["message"]


@pytest.mark.parametrize("reason", ["NO_SLOT", "LEASE_REFUSED", "DRAINING"])
async def test_refused_lease_goes_to_the_head(start, body, reason):
    """A worker's refusal leads to a new place at the head of the queue, and excludes nobody."""
    async with start() as stack:
        code = ErrorReason.Value(f"ERROR_REASON_{reason}")

        def script(run):
            if len(stack.worker.runs) <= 3:
                run.fail(code)
            else:
                run.answer("fine")

        stack.worker.script = script
        response = await stack.client.post(CHAT, json=body())
        assert response.status_code == 200
        first, *others = stack.scheduler.acquires
        assert not first.front
        assert [each.front for each in others] == [True] * 3
        assert [list(each.excluded_worker_ids) for each in others] == [[]] * 3
        assert others[-1].waited_ms > 0


@pytest.mark.parametrize(
    ("reason", "doubted"), [("LEASE_REFUSED", 1), ("INTERNAL", 1), ("NO_SLOT", 0)]
)
async def test_a_lease_that_a_worker_disowns_is_doubted(start, body, reason, doubted):
    """The slot of a lease that its worker does not know, or has a fault with, comes by a Void."""
    async with start(workers=2) as stack:

        def script(run):
            if len(stack.worker.runs) == 1:
                run.fail(ErrorReason.Value(f"ERROR_REASON_{reason}"))
            else:
                run.answer("fine")

        stack.worker.script = script
        response = await stack.client.post(CHAT, json=body())
        assert response.status_code == 200
        assert len(stack.scheduler.losts) == doubted
        assert stack.scheduler.lost_by_refusal == doubted


async def test_refused_until_the_queue_deadline(start, body):
    """Refusals end as 429 when the time in the queue is over."""
    async with start(queue_timeout_s=0.3) as stack:
        stack.worker.script = lambda run: run.fail(ErrorReason.ERROR_REASON_NO_SLOT)
        response = await stack.client.post(CHAT, json=body())
        assert error_of(response, 429) == "all backends for this model are at capacity"
        assert int(response.headers["retry-after"]) >= 1
        assert len(stack.scheduler.acquires) > 1


@pytest.mark.parametrize("stream", [False, True])
async def test_failure_goes_to_another_worker(start, body, stream):
    """A failed generation is tried on a worker that has not failed it, and the client sees none."""
    async with start(workers=3) as stack:
        for worker in stack.workers[:2]:
            worker.script = lambda run: run.fail(ErrorReason.ERROR_REASON_ENGINE_FAILED)
        response = await stack.client.post(CHAT, json=body(stream=stream))
        assert response.status_code == 200
        assert "error" not in response.text
        excluded = [list(each.excluded_worker_ids) for each in stack.scheduler.acquires]
        assert excluded == [[], ["worker_0"], ["worker_0", "worker_1"]]


async def test_at_most_two_other_workers(start, body):
    """After three workers have failed it is a 502, and the fourth is not bothered."""
    async with start(workers=4) as stack:
        for worker in stack.workers:
            worker.script = lambda run: run.fail(ErrorReason.ERROR_REASON_ENGINE_FAILED)
        response = await stack.client.post(CHAT, json=body(stream=True))
        assert error_of(response, 502) == "all backends refused the request"
        assert int(response.headers["retry-after"]) >= 1
        assert [len(worker.runs) for worker in stack.workers] == [1, 1, 1, 0]


async def test_no_other_worker(start, body):
    """When the only worker has failed, it is a 502 rather than a 503."""
    async with start() as stack:
        stack.worker.script = lambda run: run.fail(ErrorReason.ERROR_REASON_ENGINE_FAILED)
        response = await stack.client.post(CHAT, json=body())
        assert error_of(response, 502) == "all backends refused the request"


async def test_death_is_survived_once(start, body, until):
    """A request on which two workers died is not given to a third; their leases are lost."""
    async with start(workers=3) as stack:
        for worker in stack.workers:
            worker.script = lambda run: run.worker.drop_attaches()
        response = await stack.client.post(CHAT, json=body())
        assert error_of(response, 502) == "all backends refused the request"
        assert [len(worker.runs) for worker in stack.workers] == [1, 1, 0]
        await until(lambda: stack.scheduler.losts == ["lease_1", "lease_2"])
        assert stack.scheduler.releases == []


async def test_unreachable_worker(start, body, until):
    """A worker that takes no connection costs its lease nothing but a Release, and is no death."""
    async with start(workers=3) as stack:
        for worker in stack.workers[:2]:
            worker.address = "127.0.0.1:1"
        response = await stack.client.post(CHAT, json=body())
        assert response.status_code == 200
        assert stack.scheduler.losts == []
        await until(lambda: stack.scheduler.releases == ["lease_1", "lease_2"])


async def test_worker_comes_back(start, body):
    """After its streams broke, the next grant opens new ones."""
    async with start() as stack:
        assert (await stack.client.post(CHAT, json=body())).status_code == 200
        stack.worker.drop_attaches()
        assert (await stack.client.post(CHAT, json=body())).status_code in (200, 502)
        assert (await stack.client.post(CHAT, json=body())).status_code == 200


async def test_silence_before_the_first_delta(start, body):
    """A worker that says nothing is aborted and another one is tried."""
    async with start(workers=2, first_delta_timeout_s=1) as stack:
        stack.worker.script = lambda run: run.accept()
        response = await stack.client.post(CHAT, json=body())
        assert response.status_code == 200
        assert stack.worker.runs[0].aborted.is_set()


def last_event(text):
    assert text.endswith("\n\n")
    return json.loads(text.rstrip("\n").rpartition("data: ")[2])


@pytest.mark.parametrize("how", ["fails", "dies", "is silent"])
@pytest.mark.parametrize("writer", ["push", "response"])
async def test_failure_in_mid_stream(start, body, how, writer):
    """After the first delta a failure is one error event; then the stream ends, without [DONE]."""
    silence_s = 1 if how == "is silent" else 60
    async with start(workers=2, silence_timeout_s=silence_s, stream_writer=writer) as stack:

        def script(run):
            run.accept()
            run.delta("Once")
            if how == "fails":
                run.fail(ErrorReason.ERROR_REASON_ENGINE_FAILED)

        stack.worker.script = script
        path = stack.client.stream("POST", CHAT, json=body(stream=True))
        async with path as response:
            text = ""
            async for piece in response.aiter_text():
                text += piece
                if "Once" in piece and how == "dies":
                    stack.worker.drop_attaches()
        assert response.status_code == 200
        assert "[DONE]" not in text
        assert '"finish_reason":"' not in text
        assert last_event(text)["error"] == {
            "message": "the backend failed before the answer was complete",
            "type": "upstream_error",
            "code": 502,
        }
        assert stack.workers[1].runs == []


@pytest.mark.parametrize("how", ["fails", "dies", "is silent"])
async def test_failure_of_a_begun_plain_reply(start, body, how):
    """A plain reply has shown nothing, so it is generated anew elsewhere, with the same seed."""
    async with start(workers=2, silence_timeout_s=1 if how == "is silent" else 60) as stack:

        def script(run):
            run.accept()
            run.delta("Once")
            if how == "fails":
                run.fail(ErrorReason.ERROR_REASON_ENGINE_FAILED)
            if how == "dies":
                asyncio.get_running_loop().call_later(0.05, run.worker.drop_attaches)

        stack.worker.script = script
        response = await stack.client.post(CHAT, json=body())
        assert response.status_code == 200
        assert response.json()["choices"][0]["message"]["content"] == "Hello, wörld 😀!"
        assert response.json()["usage"]["completion_tokens"] == 4
        first, second = (worker.runs[0].request for worker in stack.workers)
        assert first.sampling.seed == second.sampling.seed


async def test_death_of_a_begun_plain_reply_is_survived_once(start, body):
    """Deaths count alike before and after the first delta of a plain reply."""
    async with start(workers=3) as stack:

        def script(run):
            run.accept()
            run.delta("Once")
            asyncio.get_running_loop().call_later(0.05, run.worker.drop_attaches)

        for worker in stack.workers:
            worker.script = script
        response = await stack.client.post(CHAT, json=body())
        assert error_of(response, 502) == "all backends refused the request"
        assert [len(worker.runs) for worker in stack.workers] == [1, 1, 0]


async def test_one_of_several_plain_choices_is_generated_anew(start, body):
    """The others keep what they have."""
    async with start(workers=2) as stack:

        def script(run):
            if run.request.generation == 0:
                run.answer("First")
                return
            run.accept()
            run.delta("Once")
            run.fail(ErrorReason.ERROR_REASON_ENGINE_FAILED)

        stack.worker.script = script
        stack.workers[1].script = lambda run: run.answer("Second")
        response = await stack.client.post(CHAT, json=body(n=2))
        choices = response.json()["choices"]
        assert [each["message"]["content"] for each in choices] == ["First", "Second"]


@pytest.mark.parametrize(
    ("reason", "status", "kind", "message"),
    [
        ("INVALID_REQUEST", 400, "invalid_request_error", "the grammar is too large"),
        ("INTERNAL", 500, "upstream_error", "internal error, please report the x-request-id"),
    ],
)
async def test_reason_of_a_failure_in_mid_stream(start, body, reason, status, kind, message):
    """What is the client's own fault, or a bug, is told as that after the first delta too."""
    async with start() as stack:

        def script(run):
            run.accept()
            run.delta("Once")
            run.fail(ErrorReason.Value(f"ERROR_REASON_{reason}"), "the grammar is too large")

        stack.worker.script = script
        response = await stack.client.post(CHAT, json=body(stream=True))
        assert response.status_code == 200
        assert last_event(response.text)["error"] == {
            "message": message,
            "type": kind,
            "code": status,
        }


async def test_invalid_request_of_a_begun_plain_reply(start, body):
    """A plain request that turns out to be wrong in its midst is a 400, and nobody else is tried."""
    async with start(workers=2) as stack:

        def script(run):
            run.accept()
            run.delta("Once")
            run.fail(ErrorReason.ERROR_REASON_INVALID_REQUEST, "the grammar is too large")

        stack.worker.script = script
        response = await stack.client.post(CHAT, json=body())
        assert error_of(response, 400) == "the grammar is too large"
        assert "retry-after" not in response.headers
        assert stack.workers[1].runs == []


async def test_early_headers(start, body, until):
    """A stream that is silent for long gets its status and role; what fails later is an event."""
    async with start(workers=1, early_headers_s=0.1) as stack:
        stack.worker.script = lambda run: run.accept()
        async with stack.client.stream("POST", CHAT, json=body(stream=True)) as response:
            assert response.status_code == 200
            pieces = response.aiter_text()
            assert '"role":"assistant"' in await anext(pieces)
            stack.worker.runs[0].fail(ErrorReason.ERROR_REASON_ENGINE_FAILED)
            rest = "".join([piece async for piece in pieces])
        assert last_event(rest)["error"]["message"] == "all backends refused the request"
        assert "[DONE]" not in rest


async def test_early_headers_then_another_worker(start, body, until):
    """After early headers a failure before the first delta is still tried elsewhere."""
    async with start(workers=2, early_headers_s=0.1) as stack:
        stack.worker.script = lambda run: run.accept()
        async with stack.client.stream("POST", CHAT, json=body(stream=True)) as response:
            pieces = response.aiter_text()
            first = await anext(pieces)
            stack.worker.runs[0].fail(ErrorReason.ERROR_REASON_ENGINE_FAILED)
            text = first + "".join([piece async for piece in pieces])
        assert text.count('"role"') == 1
        assert text.endswith("data: [DONE]\n\n")
        assert "Hello" in text


async def test_whole_request_timeout(start, body):
    """A request that goes on for too long ends in an error and is aborted."""
    async with start(request_timeout_s=0.3) as stack:
        stack.worker.script = lambda run: run.accept()
        response = await stack.client.post(CHAT, json=body())
        assert error_of(response, 502) == "the request took longer than it may"
        await stack.worker.runs[0].aborted.wait()


async def test_worker_gives_up(start, body):
    """A worker that ends a request as aborted, unasked, has failed it."""
    async with start(workers=2) as stack:
        stack.worker.script = lambda run: run.finish(FinishReason.FINISH_REASON_ABORTED)
        assert (await stack.client.post(CHAT, json=body())).status_code == 200


async def test_a_fault_of_ours_in_mid_stream(start, body, monkeypatch):
    """An exception nobody expected, once a stream has begun, is its error event too."""
    async with start() as stack:

        def broken(*args):
            raise RuntimeError("secret detail")

        monkeypatch.setattr("edge.metrics.Metrics.used", broken)
        response = await stack.client.post(CHAT, json=body(stream=True))
        assert response.status_code == 200
        assert last_event(response.text)["error"]["code"] == 500
        assert "secret" not in response.text


@pytest.mark.parametrize(
    "broken",
    [
        "edge.generation.Attempt",
        "edge.metering.Meter.attempt",
        "edge.metrics.Metrics.queued",
        "edge.worker_link.rpc.channel",
    ],
)
async def test_a_fault_of_ours_before_the_start(start, body, until, monkeypatch, broken):
    """An exception nobody expected between the grant and the Start gives the slot back."""
    async with start() as stack:

        def fault(*args, **fields):
            raise RuntimeError

        monkeypatch.setattr(broken, fault)
        assert (await stack.client.post(CHAT, json=body())).status_code == 500
        await until(lambda: stack.scheduler.releases == ["lease_1"])
        assert stack.worker.runs == []
        await stack.edge._metering.idle()


def failing_once(original):
    """The same, but that it fails the first time."""
    calls = []

    def call(*args, **named):
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("secret detail")
        return original(*args, **named)

    return call


@pytest.mark.parametrize("event", ["accepted", "delta", "finished"])
async def test_a_fault_of_ours_in_what_a_worker_says(start, body, until, monkeypatch, event):
    """It is no fault of the worker's, and no other one is asked: the client is told at once."""
    async with start(workers=2) as stack:
        with monkeypatch.context() as patch:
            name = f"on_{event}"
            patch.setattr(Attempt, name, failing_once(getattr(Attempt, name)))
            response = await stack.client.post(CHAT, json=body())
        assert response.status_code == 500
        assert "secret" not in response.text
        assert sum(len(worker.runs) for worker in stack.workers) == 1
        assert stack.scheduler.faults == []
        await stack.edge._metering.idle()
        assert stack.edge._scheduler._held == set()
        assert (await stack.client.post(CHAT, json=body())).status_code == 200


async def test_a_fault_of_ours_when_a_worker_is_lost(start, body, until, monkeypatch):
    """It is one request's: the others that were lost with it go on elsewhere."""
    async with start(workers=2) as stack:
        first = stack.workers[0]
        first.script = lambda run: run.accept()
        asking = [asyncio.create_task(stack.client.post(CHAT, json=body())) for _ in range(2)]
        await until(lambda: len(first.runs) == 2)
        monkeypatch.setattr(Attempt, "on_lost", failing_once(Attempt.on_lost))
        first.drop_attaches()
        statuses = [response.status_code for response in await asyncio.gather(*asking)]
        assert sorted(statuses) == [200, 500]
        await until(lambda: len(stack.scheduler.losts) == 2)
