"""What requests used, from the edge to the auth service, whatever becomes of them."""

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime

import httpx

from fastrun.v1 import auth_pb2
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import Usage
from fastrun.v1.scheduler_pb2 import GenerationUsage

CHAT = "/v1/chat/completions"


async def only_record(up, until):
    await until(lambda: up.auth.recorded)
    (record,) = up.auth.recorded.values()
    return record


async def test_a_request_leaves_its_record(start, body, until):
    """Ids, counts, times and finish of a request reach the auth service by themselves."""
    async with start() as up:
        answer = (await up.client.post(CHAT, json=body())).json()
        record = await only_record(up, until)
    assert f"chatcmpl-{record.request_id}" == answer["id"]
    assert (record.account_id, record.key_id, record.model) == ("acc_1", "key_0", "test/model")
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (11, 4, 4)
    assert record.HasField("reasoning_tokens")
    assert (record.worker_id, record.finish) == ("worker_0", "stop")
    assert record.status == auth_pb2.USAGE_STATUS_COMPLETED
    assert record.first_token_ms <= record.duration_ms < 10_000
    assert abs(record.started_at - datetime.now(UTC).timestamp()) < 60


async def test_choices_count_their_prompt_once(start, body, until):
    """Three choices are one record, with one prompt and three completions."""
    async with start() as up:
        await up.client.post(CHAT, json=body(n=3))
        record = await only_record(up, until)
    assert (record.prompt_tokens, record.completion_tokens) == (11, 12)


async def test_a_client_that_left_is_recorded_with_what_the_worker_says(start, body, until):
    """The worker's end of what was aborted counts, also when it comes after the client is gone."""
    async with start() as up:
        up.worker.script = lambda run: (run.accept(), run.delta("Hel"), run.delta("lo"))
        async with up.client.stream("POST", CHAT, json=body(stream=True)) as answer:
            await anext(answer.aiter_lines())
        record = await only_record(up, until)
    assert record.status == auth_pb2.USAGE_STATUS_CANCELLED
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (11, 2, 4)
    assert record.HasField("first_token_ms")
    assert record.finish == ""


async def test_a_worker_that_does_not_answer_an_abort_leaves_what_came(start, body, until):
    """After a while the tokens that were received are recorded, and that they may not be all."""
    async with start(abort_timeout_s=0.05) as up:
        up.worker.answers_aborts = False
        up.worker.script = lambda run: (run.accept(), run.delta("Hel"), run.delta("lo"))
        async with up.client.stream("POST", CHAT, json=body(stream=True)) as answer:
            await anext(answer.aiter_lines())
        record = await only_record(up, until)
    assert record.status == auth_pb2.USAGE_STATUS_PARTIAL
    assert (record.prompt_tokens, record.completion_tokens) == (11, 2)
    assert not record.HasField("cached_tokens")


async def test_a_worker_that_died_in_mid_stream_leaves_what_came(start, body, until):
    """The request has failed, and what its client got is recorded."""
    async with start() as up:
        up.worker.script = lambda run: (run.accept(), run.delta("Hel"))
        async with up.client.stream("POST", CHAT, json=body(stream=True)) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            up.worker.drop_attaches()
            assert "error" in "".join([line async for line in lines])
        record = await only_record(up, until)
    assert record.status == auth_pb2.USAGE_STATUS_PARTIAL
    assert (record.prompt_tokens, record.completion_tokens) == (11, 1)


async def test_an_engine_that_fails_leaves_what_came(start, body, until):
    """A failure after the worker had accepted is recorded as one."""
    async with start() as up:
        up.worker.script = lambda run: (
            run.accept(),
            run.fail(ErrorReason.ERROR_REASON_ENGINE_FAILED),
        )
        assert (await up.client.post(CHAT, json=body())).status_code == 502
        record = await only_record(up, until)
    assert record.status == auth_pb2.USAGE_STATUS_FAILED
    assert (record.prompt_tokens, record.completion_tokens) == (11, 0)


async def test_what_no_worker_accepted_leaves_no_record(start, body, until):
    """A refused request, and one that never got a slot, are nobody's usage."""
    async with start() as up:
        up.worker.script = lambda run: run.fail(ErrorReason.ERROR_REASON_INVALID_REQUEST)
        assert (await up.client.post(CHAT, json=body())).status_code == 400
        up.scheduler.on_acquire = lambda acquire: up.scheduler.reject(
            acquire, ErrorReason.ERROR_REASON_QUEUE_FULL
        )
        assert (await up.client.post(CHAT, json=body())).status_code == 429
        up.scheduler.on_acquire = up.scheduler.grant
        up.worker.script = lambda run: run.answer("Hi")
        served = (await up.client.post(CHAT, json=body())).json()
        record = await only_record(up, until)
    assert f"chatcmpl-{record.request_id}" == served["id"]


async def test_a_worker_that_vanished_before_it_accepted_is_asked_about(start, body, until):
    """The scheduler knows what it used, for the worker tells it when it comes back."""
    async with start(resume_timeout_s=0.1) as up:
        up.worker.script = lambda run: up.worker.drop_attaches()
        assert (await up.client.post(CHAT, json=body())).status_code == 502
        request_id = up.scheduler.acquires[0].request_id
        assert not up.auth.recorded
        usage = Usage(prompt_tokens=11, completion_tokens=9)
        found = GenerationUsage(request_id=request_id, worker_id="worker_0", usage=usage)
        up.scheduler.usages = {request_id: [found]}
        record = await only_record(up, until)
    assert (record.request_id, record.completion_tokens) == (request_id, 9)
    assert record.status == auth_pb2.USAGE_STATUS_FAILED


async def test_records_wait_for_the_auth_service(start, body, until):
    """While nothing can be recorded requests are served, and each is recorded afterwards, once."""
    async with start() as up:
        up.auth.takes_usage = False
        ids = {(await up.client.post(CHAT, json=body())).json()["id"] for _ in range(20)}
        assert not up.auth.recorded
        up.auth.takes_usage = True
        await until(lambda: len(up.auth.recorded) == 20)
    assert ids == {f"chatcmpl-{each}" for each in up.auth.recorded}


async def test_schedulers_are_asked_while_nothing_can_be_recorded(start, body, until):
    """Schedulers forget after an hour, so they are asked however long the auth service is away."""
    async with start(resume_timeout_s=0.1) as up:
        up.auth.takes_usage = False
        assert (await up.client.post(CHAT, json=body())).status_code == 200
        up.worker.script = lambda run: up.worker.drop_attaches()
        assert (await up.client.post(CHAT, json=body())).status_code == 502
        (asked,) = up.edge._spool.to_ask()
        usage = Usage(prompt_tokens=11, completion_tokens=9)
        found = GenerationUsage(request_id=asked.request_id, worker_id="worker_0", usage=usage)
        up.scheduler.usages = {asked.request_id: [found]}
        await until(lambda: not up.edge._spool.to_ask())
        assert not up.auth.recorded
        up.scheduler.usages = {}
        up.auth.takes_usage = True
        await until(lambda: len(up.auth.recorded) == 2)
        assert up.auth.recorded[asked.request_id].completion_tokens == 9


async def test_what_is_left_at_the_end_is_delivered_by_the_next_edge(start, body, tmp_path):
    """An edge that stops leaves its records in the folder, and an edge that starts delivers them."""
    folder = str(tmp_path)
    async with start(spool=folder) as up:
        up.auth.takes_usage = False
        answer = (await up.client.post(CHAT, json=body())).json()
    assert list(tmp_path.iterdir())
    async with start(spool=folder) as heir, asyncio.timeout(10):
        while not heir.auth.recorded:
            await asyncio.sleep(0.01)
        assert {answer["id"]} == {f"chatcmpl-{each}" for each in heir.auth.recorded}
    assert not list(tmp_path.iterdir())


async def test_an_edge_that_stops_delivers_what_it_has(start, body, tmp_path):
    """Nothing is left in the folder of an edge that ended in order."""
    async with start(spool=str(tmp_path), usage_interval_s=60) as up:
        await up.client.post(CHAT, json=body())
        assert not up.auth.recorded
        await up.edge.drain()
        await up.edge.stop()
        assert len(up.auth.recorded) == 1
    assert not list(tmp_path.iterdir())


async def test_an_edge_that_was_killed_leaves_one_record_for_each_request(start, body, tmp_path):
    """What an edge had open when it died is asked of the scheduler, and recorded or not."""
    program = """
import os, sys
from pathlib import Path
from edge.usage_lines import Closed, Counts, Ending, Open, Status
from edge.usage_spool import Spool
spool = Spool(Path(sys.argv[1]), "ab", limit_bytes=1 << 20)
spool.repair()
for name in ("ran", "never", "done"):
    spool.begin(Open(request_id=name, account_id="a", key_id="k", model="m", started_at=1.0,
                     generations=(0,)))
spool.end(Closed(request_id="done", account_id="a", key_id="k", model="m", started_at=1.0,
                 ending=Ending(status=Status.COMPLETED), counts=Counts(prompt=1)))
os.kill(os.getpid(), 9)
"""
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert killed.returncode == -9
    async with start(spool=str(tmp_path)) as up, asyncio.timeout(30):
        usage = Usage(prompt_tokens=5, completion_tokens=0)
        up.scheduler.usages = {
            "ran": [GenerationUsage(request_id="ran", worker_id="w", usage=usage)],
            "never": [GenerationUsage(request_id="never", worker_id="w")],
        }
        while len(up.auth.recorded) < 2:
            await asyncio.sleep(0.01)
        assert set(up.auth.recorded) == {"ran", "done"}
        assert up.auth.recorded["ran"].prompt_tokens == 5
        assert up.auth.recorded["ran"].HasField("completion_tokens")
        assert up.auth.recorded["ran"].status == auth_pb2.USAGE_STATUS_PARTIAL
    assert not list(tmp_path.iterdir())


async def test_a_full_spool_refuses_requests_until_it_is_emptied(start, body, until):
    """Unrecorded service is refused with 503, readiness says why, and both end by themselves."""
    async with start(spool_limit_bytes=300) as up:
        up.auth.takes_usage = False
        assert (await up.client.post(CHAT, json=body())).status_code == 200
        refused = await up.client.post(CHAT, json=body())
        assert refused.status_code == 503
        assert refused.json()["error"] == {
            "message": "usage cannot be recorded right now",
            "type": "unavailable",
            "code": 503,
        }
        assert int(refused.headers["retry-after"]) >= 1
        assert len(up.scheduler.acquires) == 1
        ready = await up.client.get("/readyz")
        assert ready.status_code == 503
        assert "wait for the auth service" in ready.text
        up.auth.takes_usage = True
        await until(lambda: up.auth.recorded)
        await until(lambda: up.edge._why_not_ready() is None)
        assert (await up.client.post(CHAT, json=body())).status_code == 200


async def test_an_account_asks_what_it_used(start):
    """By day and model, as the auth service says, with null where no price was set."""
    async with start() as up:
        up.auth.sums = [
            auth_pb2.UsageSum(day="2026-11-28", model="m", requests=2, prompt_tokens=5),
            auth_pb2.UsageSum(day="2026-11-29", model="m", requests=1, cost_micros=0),
        ]
        answer = await up.client.get("/v1/usage?first_day=2026-11-01&last_day=2026-11-29")
        assert answer.status_code == 200
        told = answer.json()
        assert (told["object"], told["first_day"]) == ("list", "2026-11-01")
        assert told["data"][0] == {
            "day": "2026-11-28",
            "model": "m",
            "requests": 2,
            "prompt_tokens": 5,
            "cached_tokens": 0,
            "completion_tokens": 0,
            "reasoning_tokens": 0,
            "lost_requests": 0,
            "cost_micros": None,
        }
        assert told["data"][1]["cost_micros"] == 0
        (asked,) = up.auth.queries
        assert (asked.account_id, asked.last_day) == ("acc_1", "2026-11-29")


async def test_usage_of_no_key_is_told_to_nobody(start):
    """Only a key opens it, and an account that may not call is refused as everywhere."""
    async with start() as up:
        headers = {"authorization": "Bearer fr_x"}
        answer = await up.client.get("/v1/usage", headers=headers)
        assert answer.status_code == 401
        assert not up.auth.queries


async def test_wrong_days_are_refused(start):
    """What cannot be answered as it was meant is a 400 that says what to send."""
    async with start() as up:
        for query in (
            "first_day=yesterday",
            "first_day=20261129",
            "last_day=2026-02-30",
            "last_day=0001-01-01",
            "first_day=2026-01-02&last_day=2026-01-01",
            "first_day=2020-01-01&last_day=2026-01-01",
            "first_day=2026-01-01&first_day=2026-01-02",
            "start_day=2026-01-01",
        ):
            answer = await up.client.get(f"/v1/usage?{query}")
            assert answer.status_code == 400, query
            assert "day" in answer.json()["error"]["message"]
        assert not up.auth.queries


async def test_usage_that_cannot_be_looked_up_is_a_503(start):
    """Without Postgres the answer is to come again."""
    async with start() as up:
        up.auth.takes_usage = False
        answer = await up.client.get("/v1/usage")
        assert answer.status_code == 503
        assert json.loads(answer.text)["error"]["message"] == "usage cannot be looked up right now"
        assert "retry-after" in answer.headers


async def test_metrics_tell_of_records(start, body, until):
    """How many there were, how they ended, and what waits."""
    async with start() as up:
        await up.client.post(CHAT, json=body())
        await until(lambda: up.auth.recorded)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{up.admin_port}") as admin:
            text = (await admin.get("/metrics")).text
    assert 'fastrun_edge_usage_records_total{status="completed"} 1.0' in text
    assert "fastrun_edge_spool_bytes" in text
