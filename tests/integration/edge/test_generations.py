"""Requests of several generations: one place in the queue, a slot and a choice for each."""

import asyncio
import json

import pytest

from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import FinishReason

CHAT = "/v1/chat/completions"


def events(text):
    parts = [part.removeprefix("data: ") for part in text.removesuffix("\n\n").split("\n\n")]
    return [part if part == "[DONE]" else json.loads(part) for part in parts]


def by_index(chunks):
    choices = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            choices.setdefault(choice["index"], []).append(choice)
    return choices


def text_of(choices):
    return "".join(choice["delta"].get("content", "") for choice in choices)


def say_index(run):
    run.answer(f"answer {run.request.generation}")


async def test_plain(start, body):
    """One Acquire asks for all, each is one choice, and the prompt counts once."""
    async with start() as stack:
        stack.worker.script = say_index
        response = await stack.client.post(CHAT, json=body(n=3))
        answer = response.json()
        assert [each["index"] for each in answer["choices"]] == [0, 1, 2]
        texts = [each["message"]["content"] for each in answer["choices"]]
        assert texts == ["answer 0", "answer 1", "answer 2"]
        assert answer["usage"]["prompt_tokens"] == 11
        assert answer["usage"]["completion_tokens"] == 3
        (acquire,) = stack.scheduler.acquires
        assert list(acquire.generations) == [0, 1, 2]
        assert {run.request.request_id for run in stack.worker.runs} == {acquire.request_id}
        assert len({run.request.lease for run in stack.worker.runs}) == 3


async def test_streamed(start, body):
    """Choices interleave, each with its role and its end; usage once, [DONE] at the very end."""
    async with start() as stack:
        stack.worker.script = say_index
        asked = body(n=3, stream=True, stream_options={"include_usage": True})
        response = await stack.client.post(CHAT, json=asked)
        *chunks, usage, done = events(response.text)
        assert done == "[DONE]"
        assert usage["choices"] == []
        assert usage["usage"]["total_tokens"] == 11 + 3
        choices = by_index(chunks)
        assert sorted(choices) == [0, 1, 2]
        for index, of_one in choices.items():
            assert of_one[0]["delta"] == {"role": "assistant", "content": ""}
            assert of_one[-1] == {"index": index, "delta": {}, "finish_reason": "stop"}
            assert [each["finish_reason"] for each in of_one[:-1]] == [None] * (len(of_one) - 1)
            assert text_of(of_one) == f"answer {index}"


async def test_one_slot_at_a_time(start, body, until):
    """Each generation starts as soon as it has a slot, also long after the queue's deadline."""
    async with start(queue_timeout_s=0.2) as stack:
        scheduler = stack.scheduler
        scheduler.on_acquire = lambda acquire: (
            scheduler.grant_one(acquire, 0, stack.worker) if len(scheduler.acquires) == 1 else None
        )
        stack.worker.script = say_index
        asking = asyncio.create_task(stack.client.post(CHAT, json=body(n=3)))
        await until(lambda: len(stack.worker.runs) == 1)
        (acquire,) = scheduler.acquires
        del acquire.generations[0]
        scheduler.reject(acquire, ErrorReason.ERROR_REASON_QUEUE_TIMEOUT)
        await until(lambda: len(scheduler.acquires) == 2)
        again = scheduler.acquires[1]
        assert list(again.generations) == [1, 2]
        assert again.front
        assert again.queue_timeout_ms > again.waited_ms == 0
        scheduler.grant_one(again, 2, stack.worker)
        await until(lambda: len(stack.worker.runs) == 2)
        scheduler.grant_one(again, 1, stack.worker)
        answer = (await asking).json()
        texts = [each["message"]["content"] for each in answer["choices"]]
        assert texts == ["answer 0", "answer 1", "answer 2"]
        assert scheduler.cancels == []


async def test_one_that_waits_on_leaves_no_other_waiting(start, body, until):
    """What a refusal says of one that is tried again counts, also if another one asks anew."""
    async with start(queue_timeout_s=60) as stack:
        scheduler = stack.scheduler
        scheduler.on_acquire = lambda acquire: (
            scheduler.grant_one(acquire, 0, stack.worker) if len(scheduler.acquires) == 1 else None
        )
        stack.worker.script = lambda run: run.fail(ErrorReason.ERROR_REASON_ENGINE_FAILED)
        asking = asyncio.create_task(stack.client.post(CHAT, json=body(n=2)))
        await until(lambda: len(scheduler.acquires) == 2)
        refused = scheduler.acquires[1]
        assert list(refused.generations) == [0]
        refused.generations[:] = [1, 0]
        scheduler.reject(refused, ErrorReason.ERROR_REASON_QUEUE_TIMEOUT)
        await until(asking.done)
        assert (await asking).status_code == 429
        assert [list(each.generations) for each in scheduler.acquires[2:]] == [[1]]


async def test_one_is_tried_again(start, body):
    """A generation that fails is tried elsewhere by itself, ahead of the queue."""
    async with start(workers=2) as stack:
        first, second = stack.workers
        second.script = say_index

        def script(run):
            if run.request.generation == 1:
                run.fail(ErrorReason.ERROR_REASON_ENGINE_FAILED)
            else:
                say_index(run)

        first.script = script
        response = await stack.client.post(CHAT, json=body(n=3))
        assert response.status_code == 200
        texts = [each["message"]["content"] for each in response.json()["choices"]]
        assert texts == ["answer 0", "answer 1", "answer 2"]
        _, again = stack.scheduler.acquires
        assert list(again.generations) == [1]
        assert list(again.excluded_worker_ids) == ["worker_0"]
        assert again.front
        assert [len(worker.runs) for worker in stack.workers] == [3, 1]


async def test_one_fails_for_good(start, body, until):
    """The others are aborted, those that wait give up their place, and the request has failed."""
    async with start() as stack:
        scheduler = stack.scheduler

        def grant_two(acquire):
            for generation in (0, 1):
                scheduler.grant_one(acquire, generation, stack.worker)

        def script(run):
            run.accept()
            if run.request.generation == 1:
                run.fail(ErrorReason.ERROR_REASON_INVALID_REQUEST, "too odd")

        scheduler.on_acquire = grant_two
        stack.worker.script = script
        response = await stack.client.post(CHAT, json=body(n=3))
        assert response.status_code == 400
        assert response.json()["error"]["message"] == "too odd"
        running = next(run for run in stack.worker.runs if run.request.generation == 0)
        async with asyncio.timeout(5):
            await running.aborted.wait()
        await until(lambda: scheduler.cancels)
        assert stack.edge._scheduler.waiting == 0
        await until(lambda: stack.edge._scheduler._held == set())


async def test_failure_after_a_sibling_began(start, body):
    """What has begun ends with the error event, and without [DONE]."""
    async with start() as stack:

        def script(run):
            run.accept()
            if run.request.generation == 0:
                run.delta("a")
            else:
                run.fail(ErrorReason.ERROR_REASON_INVALID_REQUEST, "too odd")

        stack.worker.script = script
        response = await stack.client.post(CHAT, json=body(n=2, stream=True))
        *_, last = events(response.text)
        assert last["error"]["message"] == "too odd"
        assert "[DONE]" not in response.text


async def test_client_leaves(start, body, until):
    """All that run are aborted, and what waits gives up its place."""
    async with start() as stack:
        scheduler = stack.scheduler
        scheduler.on_acquire = lambda acquire: scheduler.grant_one(acquire, 1, stack.worker)
        stack.worker.script = lambda run: run.accept()
        asking = asyncio.create_task(stack.client.post(CHAT, json=body(n=3)))
        await until(lambda: stack.worker.runs)
        asking.cancel()
        async with asyncio.timeout(5):
            await stack.worker.runs[0].aborted.wait()
        await until(lambda: scheduler.cancels)
        # A grant that has crossed the Cancel is given back.
        scheduler.grant_one(scheduler.acquires[0], 0, stack.worker)
        await until(lambda: scheduler.releases)


async def test_seeds(start, body):
    """A seed gives each choice one of its own, the same every time; the first keeps it."""
    async with start() as stack:
        for _ in range(2):
            await stack.client.post(CHAT, json=body(n=3, seed=7))
        seeds = {}
        for run in stack.worker.runs:
            seeds.setdefault(run.request.generation, set()).add(run.request.sampling.seed)
        assert [len(each) for each in seeds.values()] == [1, 1, 1]
        assert seeds[0] == {7}
        assert len(set.union(*seeds.values())) == 3


def complete(**fields):
    return {"model": "test/model", "prompt": "Once", **fields}


async def test_completion(start):
    """A raw text is continued, by at most 16 tokens unless told otherwise."""
    async with start() as stack:
        response = await stack.client.post("/v1/completions", json=complete(seed=-1))
        assert response.status_code == 200, response.text
        answer = response.json()
        assert answer["id"].startswith("cmpl-")
        assert answer["object"] == "text_completion"
        assert answer["choices"] == [
            {"index": 0, "text": "Hello, wörld 😀!", "logprobs": None, "finish_reason": "stop"}
        ]
        request = stack.worker.runs[0].request
        assert request.prompt == "Once"
        assert not request.messages
        assert request.sampling.max_tokens == 16
        assert request.sampling.seed == 2**63 - 1


@pytest.mark.parametrize("stream", [False, True])
async def test_prompts(start, stream):
    """Each prompt has n choices next to each other; usage counts each prompt once."""
    async with start() as stack:
        stack.worker.script = lambda run: run.answer(run.request.prompt, "!")
        asked = complete(prompt=["a", "b", "c"], n=2, stream=stream, seed=7)
        if stream:
            asked["stream_options"] = {"include_usage": True}
        response = await stack.client.post("/v1/completions", json=asked)
        if stream:
            *chunks, usage, _ = events(response.text)
            assert {chunk["object"] for chunk in chunks} == {"text_completion"}
            choices = sorted(by_index(chunks).items())
            texts = ["".join(each["text"] for each in of_one) for _, of_one in choices]
            assert [of_one[-1]["text"] for _, of_one in choices] == [""] * 6
        else:
            usage = response.json()
            texts = [each["text"] for each in usage["choices"]]
        assert texts == ["a!", "a!", "b!", "b!", "c!", "c!"]
        assert usage["usage"]["prompt_tokens"] == 3 * 11
        assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 3 * 4
        assert usage["usage"]["completion_tokens"] == 6 * 2
        seeds = {run.request.generation: run.request.sampling.seed for run in stack.worker.runs}
        assert [seeds[index] for index in range(0, 6, 2)] == [7, 7, 7]
        assert len({*seeds.values()}) == 2


async def test_equal_prompts_without_a_seed(start):
    """They are continued by chance, each in its own way."""
    async with start() as stack:
        await stack.client.post("/v1/completions", json=complete(prompt=["a"] * 4))
        assert len({run.request.sampling.seed for run in stack.worker.runs}) == 4


async def test_silent_completion_stream(start, until):
    """After its time a silent stream gets its headers and an event without text."""
    async with start(early_headers_s=0.05) as stack:
        stack.worker.script = lambda run: run.accept()
        asked = complete(stream=True)
        async with stack.client.stream("POST", "/v1/completions", json=asked) as response:
            assert response.status_code == 200
            (run,) = stack.worker.runs
            run.answer("fine")
            text = (await response.aread()).decode()
        first, *chunks, last, done = events(text)
        assert first["choices"][0]["text"] == ""
        assert [chunk["choices"][0]["text"] for chunk in chunks] == ["fine"]
        assert last["choices"][0]["finish_reason"] == "stop"
        assert done == "[DONE]"


async def test_tools_reasoning_and_logprobs(start, body):
    """What a worker says beside text reaches the client, streamed as plain."""
    token = {"token": b"hm", "logprob": -0.5, "top": [{"token": b"oh", "logprob": -1}]}

    def script(run):
        run.accept()
        run.send(delta={"reasoning": "hm", "token_ids": [1], "logprobs": [token]})
        call = {"index": 0, "id": "call_1", "name": "f", "arguments": "{"}
        run.send(delta={"tool_calls": [call], "token_ids": [2], "logprobs": [token]})
        run.send(delta={"tool_calls": [{"index": 0, "arguments": "}"}], "token_ids": [3]})
        run.tokens = 3
        run.finish(FinishReason.FINISH_REASON_TOOL_CALLS)

    async with start() as stack:
        stack.worker.script = script
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        asked = body(
            tools=tools,
            tool_choice={"type": "function", "function": {"name": "f"}},
            parallel_tool_calls=False,
            reasoning_effort="low",
            chat_template_kwargs={"a": [1]},
            response_format={"type": "json_object"},
            logprobs=True,
            top_logprobs=1,
        )
        plain = (await stack.client.post(CHAT, json=asked)).json()
        (choice,) = plain["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        assert choice["message"]["reasoning"] == "hm"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "f", "arguments": "{}"}
        assert len(choice["logprobs"]["content"]) == 2

        request = stack.worker.runs[0].request
        assert request.tools[0].parameters_json_schema == '{"type":"object"}'
        assert request.tool_choice.name == "f"
        assert request.HasField("parallel_tool_calls")
        assert not request.parallel_tool_calls
        assert request.chat_template_kwargs_json == '{"a":[1]}'
        assert request.response_format.json_object
        assert request.top_logprobs == 1

        streamed = await stack.client.post(CHAT, json={**asked, "stream": True})
        *chunks, _ = events(streamed.text)
        choices = [chunk["choices"][0] for chunk in chunks]
        deltas = [each["delta"] for each in choices]
        assert "".join(each.get("reasoning", "") for each in deltas) == "hm"
        calls = [call for each in deltas for call in each.get("tool_calls", [])]
        assert "".join(call["function"]["arguments"] for call in calls) == "{}"
        assert [call.get("id") for call in calls] == ["call_1", None]
        logprobs = [
            item for each in choices for item in each.get("logprobs", {"content": []})["content"]
        ]
        assert logprobs == choice["logprobs"]["content"]
        assert choices[-1]["finish_reason"] == "tool_calls"
