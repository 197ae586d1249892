"""The two shapes of an answer: of a chat completion and of a text completion."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import orjson
from msgspec import UNSET

from edge.answer import Answer, WrittenLogprobs
from edge.logprobs import WrittenChatLogprobs, WrittenTextLogprobs
from edge.openai_replies import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    Completion,
    TextChoice,
    encode,
)
from edge.openai_schema import (
    CalledFunction,
    ChatCompletionRequest,
    CompletionRequest,
    ToolCall,
)
from edge.sse import (
    CHAT_CHUNK,
    FINISH_REASONS,
    TEXT_CHUNK,
    ChatEvents,
    CompletionEvents,
    Events,
    Identity,
    usage_event,
    usage_of,
)
from fastrun.v1.generation_pb2 import FinishReason, Usage


class Format(Protocol):
    """What an answer looks like, plain and streamed."""

    def events(self, index: int) -> Events:
        """Make the events of one choice."""

    def usage(self, usage: Usage) -> bytes:
        """The event after those of all choices; nothing unless it was asked for."""

    def answer(self) -> Answer:
        """Where one choice of a plain answer gathers."""

    def document(self, answers: Sequence[Answer], reasons: Sequence[int], usage: Usage) -> bytes:
        """The plain answer, with one item of each list per choice."""


class ChatFormat:
    """The shape of a chat completion."""

    def __init__(self, request_id: str, chat: ChatCompletionRequest) -> None:
        self._identity = Identity.now(f"chatcmpl-{request_id}", chat.model)
        self._include_usage = chat.include_usage
        self._has_logprobs = chat.alternatives is not None
        self._text_only = not chat.tools and not self._has_logprobs

    def events(self, index: int) -> ChatEvents:
        """See Format."""
        return ChatEvents(self._identity, index, text_only=self._text_only)

    def usage(self, usage: Usage) -> bytes:
        """See Format."""
        return usage_event(self._identity, CHAT_CHUNK, usage) if self._include_usage else b""

    def answer(self) -> Answer:
        """See Format."""
        return Answer(WrittenChatLogprobs() if self._has_logprobs else None)

    def document(self, answers: Sequence[Answer], reasons: Sequence[int], usage: Usage) -> bytes:
        """See Format."""
        return encode(
            ChatCompletion(
                id=self._identity.id,
                object="chat.completion",
                created=self._identity.created,
                model=self._identity.model,
                choices=[
                    ChatChoice(
                        index=index,
                        message=_message(answer, reason),
                        finish_reason=FINISH_REASONS[reason],
                        logprobs=UNSET if answer.written is None else _as_it_is(answer.written),
                    )
                    for index, (answer, reason) in enumerate(zip(answers, reasons, strict=True))
                ],
                usage=usage_of(usage),
            )
        )


class CompletionFormat:
    """The shape of a text completion."""

    def __init__(self, request_id: str, completion: CompletionRequest) -> None:
        self._identity = Identity.now(f"cmpl-{request_id}", completion.model)
        self._include_usage = completion.include_usage
        self._alternatives = completion.alternatives

    def events(self, index: int) -> CompletionEvents:
        """See Format."""
        return CompletionEvents(self._identity, index, self._alternatives)

    def usage(self, usage: Usage) -> bytes:
        """See Format."""
        return usage_event(self._identity, TEXT_CHUNK, usage) if self._include_usage else b""

    def answer(self) -> Answer:
        """See Format."""
        alternatives = self._alternatives
        return Answer(None if alternatives is None else WrittenTextLogprobs(alternatives))

    def document(self, answers: Sequence[Answer], reasons: Sequence[int], usage: Usage) -> bytes:
        """See Format."""
        return encode(
            Completion(
                id=self._identity.id,
                object="text_completion",
                created=self._identity.created,
                model=self._identity.model,
                choices=[
                    _text_choice(index, answer, reason)
                    for index, (answer, reason) in enumerate(zip(answers, reasons, strict=True))
                ],
                usage=usage_of(usage),
            )
        )


def _text_choice(index: int, answer: Answer, reason: int) -> TextChoice:
    logprobs = None if answer.written is None else _as_it_is(answer.written)
    word = FINISH_REASONS[reason]
    return TextChoice(index=index, text=answer.content, logprobs=logprobs, finish_reason=word)


def _as_it_is(written: WrittenLogprobs) -> Any:
    """Return what is encoded already as a value that is encoded to itself."""
    return msgspec.Raw(written.json())


def _message(answer: Answer, reason: int) -> AssistantMessage:
    calls = [
        ToolCall(call.id, "function", CalledFunction(call.name, call.arguments))
        for call in answer.tool_calls
    ]
    if calls and reason == FinishReason.FINISH_REASON_LENGTH and not _is_json(calls[-1]):
        del calls[-1]  # cut off by max_tokens: half a call can only harm
    return AssistantMessage(
        role="assistant",
        content=answer.content or (None if calls else ""),
        reasoning=answer.reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


def _is_json(call: ToolCall) -> bool:
    try:
        orjson.loads(call.function.arguments)
    except orjson.JSONDecodeError:
        return False
    return True
