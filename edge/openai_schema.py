"""The request bodies of the OpenAI API that fastrun takes: one readable table.

Adding a parameter is one line here, one in the proto and one where both meet
(edge/generate_request.py). What no single field shows is checked in edge/request_rules.py. The
OpenAPI document is made from these same Structs, and its descriptions are the texts below the
fields. Null is absent wherever a field has a default.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MOST_TOKENS = 16384
COMPLETION_TOKENS = 16
"""What a text completion may generate when it does not say."""

Text = Annotated[str, Meta(min_length=1)]
Stops = Annotated[list[Text], Meta(max_length=4)]
Tokens = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
Share = Annotated[float, Meta(ge=0, le=1)]
ZeroToTwo = Annotated[float, Meta(ge=0, le=2)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
UpTo20 = Annotated[int, Meta(ge=0, le=20)]


class Part(msgspec.Struct, frozen=True):
    """One piece of a message's content; only text is taken."""

    type: str
    """`text`."""
    text: str | None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """Which function was called, and with what."""

    name: str
    arguments: str
    """JSON, as the model wrote it."""


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a function by the model."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    """Text, whole or in parts; null only in an assistant's turn."""
    reasoning: str | None = None
    """Of an assistant's turn: what it thought."""
    reasoning_content: str | None = None
    """The same by the name that other servers give it, and clients send back."""
    tool_calls: list[ToolCall] | None = None
    """Of an assistant's turn: the calls that it made."""
    tool_call_id: str | None = None
    """Of a tool's turn: the call that it answers."""
    function_call: dict[str, Any] | None = None
    """Older than tool_calls, and not taken."""

    def text(self) -> str | None:
        """The content as one string; None where there is none."""
        if isinstance(self.content, list):
            return "\n".join(part.text or "" for part in self.content)
        return self.content


class Function(msgspec.Struct, frozen=True):
    """A function that the model may call."""

    name: Text
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON Schema of the arguments."""
    strict: bool | None = None
    """Accepted; a forced call satisfies the schema either way."""


class Tool(msgspec.Struct, frozen=True):
    """Something that the model may use; only functions are known."""

    type: Literal["function"]
    function: Function


class FunctionName(msgspec.Struct, frozen=True):
    """A function by its name."""

    name: str


class NamedTool(msgspec.Struct, frozen=True):
    """The one tool that has to be used."""

    type: Literal["function"]
    function: FunctionName


class JsonSchema(msgspec.Struct, frozen=True):
    """A schema that the answer satisfies."""

    name: str
    schema: dict[str, Any]
    """At most 256 KiB and 64 levels; `$ref` only into itself."""
    strict: bool | None = None
    """Accepted; the answer satisfies the schema either way."""


class ResponseFormat(msgspec.Struct, frozen=True):
    """What the answer is restricted to."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    """Required with the type of its name."""


class StreamOptions(msgspec.Struct, frozen=True):
    """How a stream is to look."""

    include_usage: bool | None = None
    """A last chunk, before `[DONE]`, holds the usage and no choices."""


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a request of either kind may say."""

    model: Text
    """Id of the model, as GET /models lists it."""
    stream: bool | None = None
    """Answer with server-sent events, ended by `[DONE]`."""
    stream_options: StreamOptions | None = None
    """Only with `stream`."""
    max_tokens: Tokens | None = None
    """Most tokens to generate; the context window may end an answer before."""
    temperature: ZeroToTwo | None = None
    """0 always takes the likeliest token. Absent: as the model recommends, else 1."""
    top_p: Share | None = None
    """Keep the likeliest tokens that have this share together. Absent: as the model recommends."""
    top_k: Annotated[int, Meta(ge=0, le=1000)] | None = None
    """Keep so many of the likeliest tokens; 0 is off. Absent: as the model recommends."""
    min_p: Share | None = None
    """Keep tokens at least this share as likely as the likeliest; 0 is off."""
    frequency_penalty: Penalty | None = None
    """Over 0: the less likely a token, the more often it came already."""
    presence_penalty: Penalty | None = None
    """Over 0: a token that came already is less likely."""
    repetition_penalty: ZeroToTwo | None = None
    """Over 1: a token of prompt or answer is less likely; 1 is off."""
    stop: Text | Stops | None = None
    """Generation ends before any of these texts."""
    n: Annotated[int, Meta(ge=1, le=8)] | None = None
    """How many answers to each prompt. Default 1."""

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that holds the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def choices(self) -> int:
        """How many answers each prompt gets."""
        return self.n or 1

    @property
    def stops(self) -> list[str]:
        """Texts that end the generation."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def texts(self) -> list[str]:
        """The texts of which each has to fit into the context window."""
        raise NotImplementedError


class ChatCompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    """The conversation, oldest turn first."""
    max_completion_tokens: Tokens | None = None
    """The newer name of `max_tokens`; wins over it."""
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """The same request with the same seed is sampled alike."""
    logprobs: bool | None = None
    """Report how likely each token was."""
    top_logprobs: UpTo20 | None = None
    """How many alternatives to each token to report; only with `logprobs`."""
    tools: list[Tool] | None = None
    """Functions that the model may call."""
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    """`required` forces a call, an object forces that function. Default `auto` with tools."""
    parallel_tool_calls: bool | None = None
    """False allows one call at most."""
    response_format: ResponseFormat | None = None
    """Restricts the answer to JSON; what is thought before it stays free."""
    reasoning_effort: Literal["none", "low", "medium", "high"] | None = None
    """Whether the model thinks before it answers. Default `none`."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the model's chat template, such as `enable_thinking`."""

    @property
    def token_limit(self) -> int | None:
        """Most tokens to generate; None leaves it to the model."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """How many alternatives to report for each token; None reports no logprobs at all."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def texts(self) -> list[str]:
        """The whole conversation."""
        return ["".join(message.text() or "" for message in self.messages)]


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: str | Annotated[list[str], Meta(min_length=1)]
    """Text to continue, or several; times `n` at most 128. No chat template is applied."""
    seed: int | None = None
    """The same request with the same seed is sampled alike."""
    logprobs: UpTo20 | None = None
    """Report how likely each token was, with so many alternatives."""

    @property
    def token_limit(self) -> int:
        """Most tokens to generate."""
        return self.max_tokens or COMPLETION_TOKENS

    @property
    def alternatives(self) -> int | None:
        """How many alternatives to report for each token; None reports no logprobs at all."""
        return self.logprobs

    def texts(self) -> list[str]:
        """Each prompt."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt
