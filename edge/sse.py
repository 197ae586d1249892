"""What an answer looks like on the wire: the events of a stream, and the plain reply.

What stays the same in every chunk of a request is built once; per chunk only the text is encoded.
"""

import time
from dataclasses import dataclass

import orjson

from edge.errors import Refusal
from fastrun.v1.generation_pb2 import FinishReason, Usage

DONE = b"data: [DONE]\n\n"

FINISH_REASONS: dict[int, str] = {
    FinishReason.FINISH_REASON_STOP: "stop",
    FinishReason.FINISH_REASON_LENGTH: "length",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """What every chunk of one answer repeats."""

    request_id: str
    model: str
    created: int
    """Seconds since 1970."""

    @classmethod
    def now(cls, request_id: str, model: str) -> "Identity":
        """An answer that begins now."""
        return cls(request_id, model, int(time.time()))

    def fields(self, kind: str) -> dict[str, object]:
        """The first fields of an object of this answer."""
        return {
            "id": f"chatcmpl-{self.request_id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


class ChatEvents:
    """The events of one streamed chat completion, as bytes."""

    def __init__(self, identity: Identity, *, include_usage: bool) -> None:
        self._head = b"data: " + orjson.dumps(identity.fields("chat.completion.chunk"))[:-1]
        self._include_usage = include_usage
        self._before_text = self._head + b',"choices":[{"index":0,"delta":{"content":'
        self._after_text = b'},"finish_reason":null}]}\n\n'

    def role(self) -> bytes:
        """The first chunk, before any text."""
        return (
            self._head
            + b',"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
            + b'"finish_reason":null}]}\n\n'
        )

    def text(self, text: str) -> bytes:
        """A piece of the answer."""
        return self._before_text + orjson.dumps(text) + self._after_text

    def end(self, reason: int, usage: Usage) -> bytes:
        """The last chunks: why it ended, the usage if it was asked for, and [DONE]."""
        finish = orjson.dumps(FINISH_REASONS[reason])
        last = (
            self._head + b',"choices":[{"index":0,"delta":{},"finish_reason":' + finish + b"}]}\n\n"
        )
        if self._include_usage:
            last += (
                self._head + b',"choices":[],"usage":' + orjson.dumps(usage_of(usage)) + b"}\n\n"
            )
        return last + DONE


def error_event(refusal: Refusal) -> bytes:
    """The last event of a stream that failed after its status was sent; no [DONE] follows."""
    return b"data: " + refusal.body() + b"\n\n"


def chat_completion(identity: Identity, text: str, reason: int, usage: Usage) -> bytes:
    """The body of a plain reply."""
    message = {"role": "assistant", "content": text}
    return orjson.dumps(
        {
            **identity.fields("chat.completion"),
            "choices": [
                {"index": 0, "message": message, "finish_reason": FINISH_REASONS[reason]},
            ],
            "usage": usage_of(usage),
        }
    )


def usage_of(usage: Usage) -> dict[str, object]:
    """The usage as clients read it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
