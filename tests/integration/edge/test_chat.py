"""Chat completions through a real edge: what a client sees, and what scheduler and worker see."""

import asyncio
import json

import pytest


def events(text):
    """Return the data of every event, [DONE] included."""
    assert text.endswith("\n\n")
    parts = text.removesuffix("\n\n").split("\n\n")
    assert all(part.startswith("data: ") for part in parts)
    return [
        part if part == "[DONE]" else json.loads(part)
        for part in (part.removeprefix("data: ") for part in parts)
    ]


async def test_plain(start, body):
    """A plain request is answered by one document with text, reason and usage."""
    async with start() as stack:
        response = await stack.client.post("/v1/chat/completions", json=body(max_tokens=9))
        assert response.status_code == 200, response.text
        answer = response.json()
        assert answer["object"] == "chat.completion"
        assert answer["model"] == "test/model"
        assert answer["choices"] == [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello, wörld 😀!"},
                "finish_reason": "stop",
            }
        ]
        assert answer["usage"] == {
            "prompt_tokens": 11,
            "completion_tokens": 4,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 4},
        }


@pytest.mark.parametrize("writer", ["push", "response"])
async def test_streamed(start, body, writer):
    """A stream holds role, pieces, reason and [DONE], and its text equals the plain answer."""
    async with start(stream_writer=writer) as stack:
        response = await stack.client.post("/v1/chat/completions", json=body(stream=True))
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        *chunks, done = events(response.text)
        assert done == "[DONE]"
        choices = [chunk["choices"][0] for chunk in chunks]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert choices[-1] == {"index": 0, "delta": {}, "finish_reason": "stop"}
        assert {each["finish_reason"] for each in choices[:-1]} == {None}
        text = "".join(each["delta"].get("content", "") for each in choices)
        assert text == "Hello, wörld 😀!"
        assert all("usage" not in chunk for chunk in chunks)
        assert len({chunk["id"] for chunk in chunks}) == 1


async def test_usage_of_a_stream(start, body):
    """The usage comes on request, in one chunk without choices between the reason and [DONE]."""
    async with start() as stack:
        asked = body(stream=True, stream_options={"include_usage": True})
        response = await stack.client.post("/v1/chat/completions", json=asked)
        *chunks, finish, usage, done = events(response.text)
        assert done == "[DONE]"
        assert finish["choices"][0]["finish_reason"] == "stop"
        assert usage["choices"] == []
        assert usage["usage"]["total_tokens"] == 15
        assert all("usage" not in chunk for chunk in [*chunks, finish])


async def test_many_at_once(start, body):
    """Fifty streams on one Attach each get their own text and nobody else's."""
    async with start() as stack:
        stack.worker.script = lambda run: run.answer(*run.request.messages[0].content)

        async def ask(number):
            messages = [{"role": "user", "content": f"text number {number}"}]
            asked = body(messages=messages, stream=True)
            response = await stack.client.post("/v1/chat/completions", json=asked)
            *chunks, _ = events(response.text)
            return "".join(each["choices"][0]["delta"].get("content", "") for each in chunks)

        answers = await asyncio.gather(*(ask(number) for number in range(50)))
        assert answers == [f"text number {number}" for number in range(50)]
        assert len(stack.worker.attaches) == 1
