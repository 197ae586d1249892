"""What a stream looks like on the wire: the events of each choice, and those that end it.

What stays the same in every chunk of a choice is built once; per piece of plain text only that is
encoded.
"""

import time
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
import orjson
from msgspec import UNSET, UnsetType

from edge.answer import Piece
from edge.errors import Refusal
from edge.logprobs import TextLogprobsWriter, chat_logprobs
from edge.openai_replies import (
    CompletionTokensDetails,
    FunctionDelta,
    Logprobs,
    PromptTokensDetails,
    ToolCallDelta,
    Usage,
)
from fastrun.v1 import generation_pb2
from fastrun.v1.generation_pb2 import FinishReason

DONE = b"data: [DONE]\n\n"
CHAT_CHUNK = "chat.completion.chunk"
TEXT_CHUNK = "text_completion"

FINISH_REASONS: Mapping[int, Any] = {
    FinishReason.FINISH_REASON_STOP: "stop",
    FinishReason.FINISH_REASON_LENGTH: "length",
    FinishReason.FINISH_REASON_TOOL_CALLS: "tool_calls",
}
# Ends of lines to Python and to clients that read as it does; streams have lines by LF and CR only.
_LINE_ENDS = (
    (b"\xc2\x85", rb"\u0085"),
    (b"\xe2\x80\xa8", rb"\u2028"),
    (b"\xe2\x80\xa9", rb"\u2029"),
)


class Identity(msgspec.Struct, frozen=True):
    """What every chunk of one answer repeats."""

    id: str
    model: str
    created: int
    """Seconds since 1970."""

    @classmethod
    def now(cls, id: str, model: str) -> "Identity":  # noqa: A002 - the field's name
        """An answer that begins now."""
        return cls(id, model, int(time.time()))

    def head(self, kind: str) -> bytes:
        """The beginning of every event, up to what differs."""
        fields = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return b"data: " + _on_one_line(orjson.dumps(fields))[:-1]


class Events(Protocol):
    """The events of one choice, as bytes."""

    def opening(self) -> bytes:
        """What comes before its first piece; may be nothing."""

    def sign(self) -> bytes:
        """An event that says nothing but that the request is being worked on."""

    def piece(self, piece: Piece) -> bytes:
        """A piece of the answer; nothing for one in which nothing can be seen."""

    def finish(self, reason: int) -> bytes:
        """The last: why it ended."""


class ChatEvents:
    """The events of one choice of a chat completion."""

    def __init__(self, identity: Identity, index: int, *, text_only: bool = False) -> None:
        """Build what stays the same.

        Args:
            identity: of the answer.
            index: of the choice.
            text_only: neither tools nor logprobs were asked for, so none are looked for: that
                would cost more than all else that is done for a piece.
        """
        self._text_only = text_only
        before = identity.head(CHAT_CHUNK) + b',"choices":[{"index":%d,"delta":' % index
        after = b',"finish_reason":null}]}\n\n'
        self._before, self._after = before, after
        self._before_text, self._after_text = before + b'{"content":', b"}" + after

    def opening(self) -> bytes:
        """See Events: the role."""
        return self._before + b'{"role":"assistant","content":""}' + self._after

    def sign(self) -> bytes:
        """See Events: the role again, where an empty event would do as well."""
        return self.opening()

    def piece(self, piece: Piece) -> bytes:
        """See Events."""
        if piece.reasoning or (not self._text_only and (piece.tool_calls or piece.logprobs)):
            return self._rich(piece)
        text = piece.content
        if not text:
            return b""
        return self._before_text + _on_one_line(orjson.dumps(text)) + self._after_text

    def finish(self, reason: int) -> bytes:
        """See Events."""
        return self._before + b'{},"finish_reason":"%b"}]}\n\n' % FINISH_REASONS[reason].encode()

    def _rich(self, piece: Piece) -> bytes:
        """One event for each kind of content: thoughts come before text, and that before calls."""
        deltas: list[dict[str, object]] = []
        if piece.reasoning:
            deltas.append({"reasoning": piece.reasoning})
        if piece.content:
            deltas.append({"content": piece.content})
        if piece.tool_calls:
            deltas.append({"tool_calls": [_call_delta(call) for call in piece.tool_calls]})
        if not deltas:
            deltas.append({"content": ""})
        data = b"".join(self._event(delta) for delta in deltas[:-1])
        logprobs = chat_logprobs(piece.logprobs) if piece.logprobs else UNSET
        return data + self._event(deltas[-1], logprobs)

    def _event(self, delta: dict[str, object], logprobs: Logprobs | UnsetType = UNSET) -> bytes:
        data = msgspec.json.encode(delta)
        if logprobs is not UNSET:
            data += b',"logprobs":' + msgspec.json.encode(logprobs)
        return self._before + _on_one_line(data) + self._after


class CompletionEvents:
    """The events of one choice of a text completion."""

    def __init__(self, identity: Identity, index: int, alternatives: int | None) -> None:
        self._before = identity.head(TEXT_CHUNK) + b',"choices":[{"index":%d,"text":' % index
        self._after = b',"logprobs":null,"finish_reason":null}]}\n\n'
        self._logprobs = None if alternatives is None else TextLogprobsWriter(alternatives)

    def opening(self) -> bytes:
        """See Events: nothing."""
        return b""

    def sign(self) -> bytes:
        """See Events: no text."""
        return self._before + b'""' + self._after

    def piece(self, piece: Piece) -> bytes:
        """See Events."""
        text = _on_one_line(orjson.dumps(piece.content))
        if self._logprobs is None or not piece.logprobs:
            return self._before + text + self._after if piece.content else b""
        logprobs = _on_one_line(msgspec.json.encode(self._logprobs.write(piece.logprobs)))
        return self._before + text + b',"logprobs":%b,"finish_reason":null}]}\n\n' % logprobs

    def finish(self, reason: int) -> bytes:
        """See Events."""
        word = FINISH_REASONS[reason].encode()
        return self._before + b'"","logprobs":null,"finish_reason":"%b"}]}\n\n' % word


def usage_event(identity: Identity, kind: str, usage: generation_pb2.Usage) -> bytes:
    """The event that holds the usage and no choice."""
    data = msgspec.json.encode(usage_of(usage))
    return identity.head(kind) + b',"choices":[],"usage":%b}\n\n' % data


def error_event(refusal: Refusal) -> bytes:
    """The last event of a stream that failed after its status was sent; no [DONE] follows."""
    return b"data: " + refusal.body() + b"\n\n"


def usage_of(usage: generation_pb2.Usage) -> Usage:
    """The usage as clients read it."""
    thought = usage.reasoning_tokens
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(thought) if thought else UNSET,
    )


def _on_one_line(data: bytes) -> bytes:
    """Escape in JSON what a reader might take for the end of a line."""
    if data.isascii():
        return data
    for end, escape in _LINE_ENDS:
        data = data.replace(end, escape)
    return data


def _call_delta(call: generation_pb2.ToolCallDelta) -> ToolCallDelta:
    function = FunctionDelta(name=call.name or None, arguments=call.arguments)
    if call.id:
        return ToolCallDelta(index=call.index, id=call.id, type="function", function=function)
    return ToolCallDelta(index=call.index, function=function)
