"""The answers of the OpenAI API as fastrun gives them: one readable table.

Plain answers are these Structs encoded, and the OpenAPI document is made from them. The chunks of a
stream are put together from ready-made bytes (edge/sse.py); a test reads them back as these.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from edge.openai_schema import ToolCall

FinishReason = Literal["stop", "length", "tool_calls"]
ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "rate_limit_error",
    "upstream_error",
    "unavailable",
]


class ErrorFacts(msgspec.Struct, frozen=True):
    """What went wrong."""

    message: str
    """One sentence for people."""
    type: ErrorType
    """For programs."""
    code: int
    """The HTTP status."""


class ErrorResponse(msgspec.Struct, frozen=True):
    """The answer to whatever is refused or fails."""

    error: ErrorFacts


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that might have been."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """How likely a token was."""

    token: str
    """Bytes that are no text by themselves stand as \\x.. in it."""
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]
    """Likeliest first."""


class Logprobs(msgspec.Struct, frozen=True):
    """Log probabilities of a chat completion."""

    content: list[TokenLogprob]
    """One for each token."""


class TextLogprobs(msgspec.Struct, frozen=True):
    """Log probabilities of a text completion, one item for each token in every list."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]
    """Characters of the text before each token."""


class AssistantMessage(msgspec.Struct, frozen=True):
    """What the model says."""

    role: Literal["assistant"]
    content: str | None
    """Null when it only calls tools."""
    reasoning: str | UnsetType = UNSET
    """What it thought before, when reasoning is on."""
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One of n answers."""

    index: int
    message: AssistantMessage
    finish_reason: FinishReason
    logprobs: Logprobs | UnsetType = UNSET
    """Only on request."""


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Of the tokens of the prompt."""

    cached_tokens: int
    """Taken from the prefix cache."""


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Of the generated tokens."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """What a request has used, with all its choices; each prompt counts once."""

    prompt_tokens: int
    """Cached ones are counted."""
    completion_tokens: int
    """Those of reasoning are counted."""
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """When the model has reasoned."""


class ChatCompletion(msgspec.Struct, frozen=True):
    """The plain answer to a chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    """Seconds since 1970."""
    model: str
    choices: list[ChatChoice]
    usage: Usage


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a call."""

    name: str | None = None
    """Only in the first piece of a call."""
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a call; the first has id, type and name, and no later one does."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta | None = None


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What has come since the last chunk."""

    role: Literal["assistant"] | None = None
    """Only in the first chunk of a choice."""
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """A piece of one of n answers."""

    index: int
    delta: ChatDelta
    finish_reason: FinishReason | None
    """Null in all chunks but the last of a choice."""
    logprobs: Logprobs | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, frozen=True):
    """One event of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    """Empty in the chunk that holds the usage."""
    usage: Usage | UnsetType = UNSET
    """Only on request, and only in the last chunk."""


class TextChoice(msgspec.Struct, frozen=True):
    """One continuation, or a piece of one; index is that of its prompt times n, plus its own."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    """Null in all chunks of a stream but the last of a choice."""


class Completion(msgspec.Struct, frozen=True):
    """The plain answer to a text completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    """Seconds since 1970."""
    model: str
    choices: list[TextChoice]
    usage: Usage


class CompletionChunk(msgspec.Struct, frozen=True):
    """One event of a streamed text completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    """Empty in the chunk that holds the usage."""
    usage: Usage | UnsetType = UNSET
    """Only on request, and only in the last chunk."""


class Model(msgspec.Struct, frozen=True):
    """A model that can serve requests now."""

    id: str
    object: Literal["model"]
    created: int
    """Seconds since 1970."""
    owned_by: str
    context_length: int
    """Prompt and completion together, in tokens."""
    max_output_tokens: int
    features: list[str]
    """What it can do beside text, such as tools or reasoning."""
    supported_parameters: list[str]
    name: str | UnsetType = UNSET
    """For people."""
    hugging_face_id: str | UnsetType = UNSET
    """Where it is published at Hugging Face."""
    quantization: str | UnsetType = UNSET
    """What its weights are, such as bf16 or fp8."""


class ModelList(msgspec.Struct, frozen=True):
    """All models that can serve requests now."""

    object: Literal["list"]
    data: list[Model]


class UsageOfDay(msgspec.Struct, frozen=True):
    """What an account used of a model on a day."""

    day: str
    """In UTC, by when the requests came."""
    model: str
    requests: int
    """Those that a server accepted, whether they ended well or not."""
    prompt_tokens: int
    """Cached ones are counted."""
    cached_tokens: int
    completion_tokens: int
    """Reasoning is counted."""
    reasoning_tokens: int
    lost_requests: int
    """Of the requests, those whose tokens nobody knows, because a server was lost."""
    cost_micros: int | None
    """Millionths of the currency's unit, at the prices of when the requests came; null: no price
    was set."""


class UsageList(msgspec.Struct, frozen=True):
    """What the account of a key has used; newest requests may take some seconds to appear."""

    object: Literal["list"]
    first_day: str
    last_day: str
    data: list[UsageOfDay]
    """By day, then by model; days without requests are left out."""


def encode(reply: Any) -> bytes:
    """Encode one of these."""
    return msgspec.json.encode(reply)
