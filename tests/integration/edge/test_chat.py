"""Chat completions through a real edge: what a client sees, and what scheduler and worker see."""

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
