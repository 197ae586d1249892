"""What a client may ask for: the fields, their ranges, and what is said when they are wrong.

Adding a parameter is one line here, one in the proto and one where both meet (edge/generation.py).
Decoding is strict where a wrong value would change the answer, and lenient where clients differ:
null is absent, 1.0 is a whole number, and a field that nobody knows is ignored.
"""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from edge.errors import invalid
from edge.json_body import parse_object
from edge.schema_errors import explain, whole_fields

Text = Annotated[str, Meta(min_length=1)]
Stops = Annotated[list[Text], Meta(max_length=4)]
Tokens = Annotated[int, Meta(ge=1, le=16384)]
Share = Annotated[float, Meta(ge=0, le=1)]
ZeroToTwo = Annotated[float, Meta(ge=0, le=2)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class Part(msgspec.Struct, frozen=True):
    """One piece of a message's content; only text is taken."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None

    def text(self) -> str | None:
        """The content as one string; None where there is none."""
        if isinstance(self.content, list):
            return "\n".join(part.text or "" for part in self.content)
        return self.content


class StreamOptions(msgspec.Struct, frozen=True):
    """How a stream is to look."""

    include_usage: bool | None = None


class ChatCompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of POST /v1/chat/completions."""

    model: Text
    messages: Annotated[list[Message], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: ZeroToTwo | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=0, le=1000)] | None = None
    min_p: Share | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: ZeroToTwo | None = None
    stop: Text | Stops | None = None
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=8)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "low", "medium", "high"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that holds the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def token_limit(self) -> int | None:
        """Most tokens to generate; None leaves it to the model."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def stops(self) -> list[str]:
        """Texts that end the generation."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def text_bytes(self) -> int:
        """Length of all messages in UTF-8."""
        return sum(len((message.text() or "").encode()) for message in self.messages)


# Fields of the contract whose time has not come, and the values that ask for nothing.
_NOT_YET: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("auto", "none"),
    "response_format": ({"type": "text"},),
    "reasoning_effort": ("none",),
    "chat_template_kwargs": ({},),
}
# OpenAI's fields that fastrun lacks; ignoring them would change the answer.
_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "logit_bias": ({},),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
}


def decode_chat(body: bytes, *, depth_limit: int) -> ChatCompletionRequest:
    """Read the body of a chat completion.

    Raises:
        Refusal: 400, with the field's name and what it may be.
    """
    fields = parse_object(body, depth_limit=depth_limit)
    for name, neutral in _UNSUPPORTED.items():
        if fields.get(name) is not None and fields[name] not in neutral:
            raise invalid(f"{name} is not supported")
    for name in _whole_fields():
        value = fields.get(name)
        if isinstance(value, float) and value.is_integer():
            fields[name] = int(value)
    try:
        request = msgspec.convert(fields, ChatCompletionRequest)
    except msgspec.ValidationError as error:
        raise invalid(explain(error, ChatCompletionRequest)) from None
    _check(request)
    return request


@cache
def _whole_fields() -> frozenset[str]:
    return whole_fields(ChatCompletionRequest)


def _check(request: ChatCompletionRequest) -> None:
    """Refuse what no single field shows."""
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options is only allowed when stream is true")
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs is only allowed when logprobs is true")
    for name, neutral in _NOT_YET.items():
        value = getattr(request, name)
        if value is not None and value not in neutral:
            raise invalid(f"{name} is not supported yet")
    for index, message in enumerate(request.messages):
        _check_message(message, f"messages[{index}]")


def _check_message(message: Message, name: str) -> None:
    if message.tool_calls:
        raise invalid(f"{name}.tool_calls is not supported yet")
    if message.function_call:
        raise invalid(f"{name}.function_call is not supported")
    if message.content is None and message.role != "assistant":
        raise invalid(f"{name}.content is required")
    if not isinstance(message.content, list):
        return
    for index, part in enumerate(message.content):
        if part.type != "text":
            kind = part.type[:40]
            raise invalid(f"{name}.content[{index}]: parts of type '{kind}' are not supported")
        if part.text is None:
            raise invalid(f"{name}.content[{index}].text is required")
