"""What the edge logs: ids, counts, times and constants, nothing that a client wrote."""

import asyncio
import json

import pytest
import structlog

from fastrun.service import logs
from fastrun.v1.error_pb2 import ErrorReason

CHAT = "/v1/chat/completions"
SECRET = "Swordfish"


@pytest.fixture
def logged():
    """Lines as they are logged."""
    with structlog.testing.capture_logs([logs.traced]) as lines:
        yield lines


def tool(name, parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def named(name):
    return {"type": "function", "function": {"name": name}}


def schema(value):
    return {"type": "json_schema", "json_schema": {"name": SECRET, "schema": value}}


@pytest.mark.parametrize(
    "fields",
    [
        {"model": SECRET},
        {"tools": [tool("a", {})], "tool_choice": named(SECRET)},
        {"tools": [tool("a", {"properties": {SECRET: 1}})]},
        {"tools": [tool("a", {"$ref": f"#/{SECRET}"})]},
        {"tools": [tool(SECRET, {}), tool(SECRET, {})]},
        {"response_format": schema({"properties": {SECRET: {"pattern": "("}}})},
        {"chat_template_kwargs": {SECRET: "x" * 70_000}},
        {"chat_template_kwargs": {"self": SECRET}},
        {"messages": [{"role": "user", "content": [{"type": SECRET}]}]},
        {"messages": [{"role": SECRET, "content": SECRET}]},
        {SECRET: 1, "n": SECRET},
    ],
)
async def test_no_field_of_a_refused_request(start, body, logged, fields):
    """A refusal may tell a client its own words; the log has a constant."""
    async with start() as stack:
        response = await stack.client.post(CHAT, json=body(**fields))
        assert response.status_code in (400, 404)
        line = next(each for each in logged if each["event"] == "request_finished")
        assert line["failure"] == "invalid_request_error"
        assert SECRET not in repr(logged)


async def test_no_paths_keys_or_methods(start, logged):
    """A key or a prompt in the wrong place stays out of the log, and a path out of its answer."""
    async with start() as stack:
        key = stack.key
        for path in (f"/v1/{key}", f"/{key}/models/{key}", f"/v1/completion/{key}?key={key}"):
            response = await stack.client.get(path, headers={"x-request-id": key})
            assert response.status_code == 404
            assert key not in response.text
            assert key not in repr(response.headers)
        for path in (f"/v1/models/{key}", f"/v1/models?key={key}"):
            await stack.client.get(path, headers={"referer": key, "user-agent": key})
        assert [each["failure"] for each in logged if "failure" in each] == [
            *["no_such_path"] * 3,
            "invalid_request_error",
        ]
        await stack.client.request("PROPFIND", "/v1/models")
        assert logged[-1]["method"] == "other"
        assert key not in repr(logged)


async def test_no_words_of_a_worker(start, body, logged):
    """What a worker says may quote the prompt: its reason is logged."""
    async with start() as stack:
        for stream in (False, True):
            stack.worker.script = lambda run: run.fail(
                ErrorReason.ERROR_REASON_INVALID_REQUEST, SECRET
            )
            response = await stack.client.post(CHAT, json=body(stream=stream))
            assert SECRET in response.text
        lines = [each for each in logged if each["event"] == "request_finished"]
        assert [each["failure"] for each in lines] == ["invalid_request"] * 2
        assert SECRET not in repr(logged)


async def test_no_words_of_a_fault(start, body, logged, monkeypatch):
    """Of an exception nobody expected the log says where, not what it quotes."""
    async with start() as stack:

        def broken(*_args, **_kwargs):
            try:
                json.loads(SECRET)
            except ValueError as error:
                raise KeyError(SECRET) from error

        monkeypatch.setattr("edge.chat.decode_chat", broken)
        await stack.client.post(CHAT, json=body())
        fault = next(each for each in logged if each["event"] == "request_failed")
        assert fault["trace"].endswith("\nKeyError")
        assert "JSONDecodeError\n" in fault["trace"]
        assert ", in broken\n" in fault["trace"]
        assert SECRET not in repr(logged)


async def test_what_is_logged(start, body, logged):
    """A request leaves one line with its ids, counts and times, and the model if it is known."""
    async with start() as stack:
        own = {"x-request-id": "mine-1"}
        assert (await stack.client.post(CHAT, json=body(), headers=own)).status_code == 200
        lines = [each for each in logged if each["event"] == "request_finished"]
        assert len(lines) == 1
        assert (
            lines[0]
            | {
                "method": "POST",
                "endpoint": "chat",
                "status": 200,
                "model": body()["model"],
                "stream": False,
                "account_id": "acc_1",
                "key_id": "key_0",
                "worker_id": "worker_0",
                "client_request_id": "mine-1",
                "prompt_tokens": 11,
                "cached_tokens": 4,
                "completion_tokens": 4,
                "finish": "stop",
            }
            == lines[0]
        )
        assert 0 <= lines[0]["first_delta_ms"] <= lines[0]["duration_ms"]


async def test_what_is_logged_of_retries(start, body, logged):
    """The line of a request says how often it was begun anew, and went on elsewhere."""
    async with start(workers=3) as stack:
        failing, breaking, answering = stack.workers

        def fail(run):
            run.fail(ErrorReason.ERROR_REASON_ENGINE_FAILED)

        def break_off(run):
            run.accept(resumable=True)
            run.delta("Hel")
            run.drop()

        failing.script, breaking.script = fail, break_off
        assert (await stack.client.post(CHAT, json=body())).status_code == 200
        line = next(each for each in logged if each["event"] == "request_finished")
        assert (line["retried"], line["resumed"]) == (1, 1)
        assert line["worker_id"] == answering.worker_id


async def test_what_is_logged_of_a_broken_answer(start, body, logged):
    """The line of a request that failed, or whose client left, says what it had used till then."""
    async with start() as stack:

        def begin(run):
            run.accept()
            run.delta("Hel")
            run.delta("lo")

        def break_off(run):
            begin(run)
            run.fail(ErrorReason.ERROR_REASON_INTERNAL)

        stack.worker.script = break_off
        await stack.client.post(CHAT, json=body(stream=True))
        stack.worker.script = begin
        async with stack.client.stream("POST", CHAT, json=body(stream=True)) as answer:
            texts = answer.aiter_text()
            while "lo" not in await anext(texts):
                pass
        async with asyncio.timeout(10):
            while len([each for each in logged if each["event"] == "request_finished"]) < 2:
                await asyncio.sleep(0.01)
        lines = [each for each in logged if each["event"] == "request_finished"]
        assert [each["status"] for each in lines] == [200, 499]
        for line in lines:
            assert (line["prompt_tokens"], line["completion_tokens"]) == (11, 2)
            assert "finish" not in line
